"""Golden cases: calls with known results, carried by every bundle, so that an engine proves itself where it runs.

The calls share caches that begin as zeros: prefill in chunks, blocks at several starts in two slots, an idle slot,
the end of the cache. Of logits, the most likely token and a sample of columns is kept.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dflash_engines.arena import Arena
from dflash_engines.backend import Programs
from dflash_engines.contract import Dim, Limits, Program
from dflash_engines.errors import BundleError, EngineError

FILE = "golden.npz"
SLOTS = 2
BEST = "best"  # stands for accept's logits, which are too large to store: 1 at these tokens, 0 elsewhere
_COLUMNS = 64  # of the vocabulary, evenly spaced
Arrays = Mapping[str, NDArray[Any]]
# What NumPy raises for a file cut or changed, and what unpacking raises for arrays under other names.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, EOFError, BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One program call over slots first_slot… (as many as its inputs have), caches aside."""

    program: str
    first_slot: int
    inputs: Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Calls in order, what each must give, and how far a logit may be off."""

    calls: tuple[Call, ...]
    results: tuple[Arrays, ...]
    tolerance: float

    def save(self, path: Path) -> None:
        """Write as one .npz without pickled objects."""
        arrays: dict[str, NDArray[Any]] = {"tolerance": np.array([self.tolerance])}
        for index, (call, result) in enumerate(zip(self.calls, self.results, strict=True)):
            stem = f"{index:02d}.{call.program}.{call.first_slot}"
            arrays |= {f"{stem}.in.{name}": value for name, value in call.inputs.items()}
            arrays |= {f"{stem}.out.{name}": value for name, value in result.items()}
        np.savez_compressed(path, allow_pickle=False, **arrays)

    @staticmethod
    def load(path: Path) -> "Golden":
        """Read what `save` wrote. Raises BundleError for anything else."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return _unpacked(stored)
        except _UNREADABLE as fault:
            raise BundleError(f"{path} holds no golden cases ({fault!r}); export the pair again") from fault


def _unpacked(stored: Arrays) -> Golden:
    names: dict[int, tuple[str, int]] = {}
    sides: dict[tuple[int, str], dict[str, NDArray[Any]]] = {}
    for key in stored:
        if key != "tolerance":
            index, program, slot, side, name = key.split(".")
            names[int(index)] = (program, int(slot))
            sides.setdefault((int(index), side), {})[name] = stored[key]
    order = sorted(names)
    return Golden(
        calls=tuple(Call(program=names[i][0], first_slot=names[i][1], inputs=sides[i, "in"]) for i in order),
        results=tuple(sides[i, "out"] for i in order),
        tolerance=float(stored["tolerance"][0]),
    )


class Runner:
    """Runs golden calls on a backend's programs, over caches of its own."""

    def __init__(self, programs: Programs, declared: Sequence[Program], limits: Limits) -> None:
        self.programs, self.limits = programs, limits
        rows = max(*limits.block_sizes, limits.prefill_chunk, 2)
        self.arena = Arena(declared, [self._sizes(SLOTS, rows, rows)])

    def _sizes(self, slots: int, rows_in: int, rows_out: int) -> dict[Dim, int]:
        return {Dim.SLOTS: slots, Dim.ROWS_IN: rows_in, Dim.ROWS_OUT: rows_out, Dim.BLOCK: rows_out,
                Dim.CACHE_ROWS: self.limits.cache_rows}  # fmt: skip

    def run(self, call: Call) -> dict[str, NDArray[Any]]:
        """The call's outputs, caches aside, logits whole."""
        declared = self.arena.programs[call.program]
        slots, rows_in, rows_out = _call_sizes(call)
        arrays = self.arena.views(call.program, self._sizes(slots, rows_in, rows_out), call.first_slot)
        for name, value in call.inputs.items():
            if name == BEST:
                arrays["logits"].fill(0)
                np.put_along_axis(arrays["logits"], value[..., None], 1.0, axis=-1)
            else:
                arrays[name][...] = value
        outputs = {b.name: arrays[b.name] for b in declared.outputs}
        self.programs.bind(call.program, {b.name: arrays[b.name] for b in declared.inputs}, outputs)()
        return {b.name: arrays[b.name].copy() for b in declared.outputs if not b.updates}


def _call_sizes(call: Call) -> tuple[int, int, int]:
    if call.program == "target":
        slots, rows_in = call.inputs["tokens"].shape
        return slots, rows_in, call.inputs["rows"].shape[1]
    slots, rows = call.inputs["tokens" if call.program.startswith("draft") else "block"].shape
    return slots, rows, rows


def digest(outputs: Arrays) -> dict[str, NDArray[Any]]:
    """What is kept of a call's outputs: logits become their best token and a sample of columns."""
    kept = {name: value for name, value in outputs.items() if name not in ("logits", "hidden")}
    if "logits" in outputs:
        logits = outputs["logits"]
        columns = np.linspace(0, logits.shape[-1] - 1, min(_COLUMNS, logits.shape[-1])).astype(int)
        kept |= {BEST: logits.argmax(-1), "columns": logits[..., columns]}
    if "top_tokens" in kept:
        kept["top_tokens"] = kept["top_tokens"][..., :1]  # the others tie in these logits: any order of them is right
    return kept


def check(golden: Golden, runner: Runner) -> float:
    """Run every call; returns the largest deviation of a logit. Raises EngineError naming the first that is off."""
    largest = 0.0
    for index, (call, wanted) in enumerate(zip(golden.calls, golden.results, strict=True)):
        found = digest(runner.run(call))
        for name, value in wanted.items():
            off = deviation(name, found[name], value)
            if not off <= golden.tolerance:
                raise EngineError(
                    f"golden case {index} ({call.program}): {name} is off by {off:.3g}, allowed "
                    f"{golden.tolerance:.3g}; "
                    "this engine computes something else than the checked program, so it is not used"
                )
            largest = max(largest, off if name == "columns" else 0.0)
    return largest


def deviation(name: str, found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """How far an output is off: the largest difference, or for tokens and counts 0 or infinity."""
    if found.dtype.kind != "f":
        # Near-ties may flip a token of `best` and `block`; their numbers are held to account by the float outputs.
        agree = float(np.mean(found == wanted))
        return 0.0 if agree >= (0.75 if name in (BEST, "block") else 1.0) else float("inf")
    return float(np.abs(found.astype(np.float64) - wanted).max(initial=0.0))
