"""Who is to blame: the target's program, the drafter's, or the way caches are updated. One is swapped at a time."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_engines.backend import Buffers, Programs, Run
from dflash_engines.finding import Finding, fault, ok, skipped, warning
from dflash_runtime.bench.tally import Tally, tally
from dflash_runtime.completion import Completion
from dflash_runtime.doctor.patient import Patient

_BETTER = 1.12  # times the acceptance length, for a part to be blamed
_STANDARD_ERRORS = 3.0
_QUESTIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """Implements `Programs` with one program taken from elsewhere."""

    own: Programs
    other: Programs
    name: str

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        """See `Programs`."""
        return (self.other if program == self.name else self.own).bind(program, inputs, outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedCaches:
    """Implements `Programs` without updates in place: caches are written beside the old ones, then copied."""

    own: Programs

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        """See `Programs`."""
        apart = {name: np.empty_like(array) for name, array in outputs.items()}
        run = self.own.bind(program, inputs, apart)

        def run_and_copy() -> None:
            run()
            for name, array in outputs.items():
                np.copyto(array, apart[name])

        return run_and_copy


def examine_swaps(patient: Patient) -> list[Finding]:
    """The bundle's own programs, and each swapped for its fp32 form in PyTorch."""
    checks = ("the target's program", "the drafter's program")
    if patient.oracle is None or patient.programs is None:
        return [skipped(check, patient.why_no_oracle or "needs programs over host memory") for check in checks]
    own = _answers(patient, patient.programs)
    return [
        _blame(patient, check, own, _answers(patient, Swapped(own=patient.programs, other=patient.oracle, name=name)))
        for check, name in zip(checks, ("target", "draft"), strict=True)
    ]


def _answers(patient: Patient, programs: Programs) -> list[Completion]:
    prompts = [patient.prompt(question) for question in patient.questions[:_QUESTIONS]]
    return patient.answers(prompts, patient.decoder_of(programs))


def _blame(patient: Patient, check: str, own: Sequence[Completion], swapped: Sequence[Completion]) -> Finding:
    manifest, before, after = patient.bundle.manifest, tally(own), tally(swapped)
    precision = manifest.draft_precision if "drafter" in check else manifest.precision
    shown = (
        f"{precision}: acceptance length {before.acceptance_length:.2f}, with its fp32 form in PyTorch "
        f"{after.acceptance_length:.2f} ({before.count} and {after.count} blocks)"
    )
    if not _clearly_longer(after, before):
        return ok(check, shown)
    if precision == "fp32":
        return fault(
            check,
            shown,
            "it computes something else than its checkpoint: export the pair again; if that doesn't "
            "help, report the model",
        )
    option = "--draft-precision" if "drafter" in check else "--precision"
    return warning(check, shown, f"quantising it costs acceptance: export with {option} of a wider format")


def _clearly_longer(after: Tally, before: Tally) -> bool:
    if not before.count or not after.count:
        return False
    gain = after.acceptance_length - before.acceptance_length
    error = (_variance(after) / after.count + _variance(before) / before.count) ** 0.5
    return after.acceptance_length > _BETTER * before.acceptance_length and gain > _STANDARD_ERRORS * error


def _variance(found: Tally) -> float:
    mean = found.acceptance_length
    return sum(n * (length - mean) ** 2 for (_, length), n in found.passes.items()) / found.count


def examine_updates(patient: Patient) -> list[Finding]:
    """Caches updated in place against copied ones; CUDA graphs on against off where the engine has them."""
    graphs = skipped("CUDA graphs", "this engine has none; on and off are compared where a GPU runs the bundle")
    if patient.programs is None:
        return [skipped("updates in place", "needs programs over host memory"), graphs]
    own = _answers(patient, patient.programs)
    with _stderr_closed():
        copied = _answers(patient, CopiedCaches(own=patient.programs))
    if [a.token_ids for a in own] == [a.token_ids for a in copied]:
        return [ok("updates in place", "the same answers as with copied caches"), graphs]
    return [
        fault(
            "updates in place",
            "answers differ from those with copied caches",
            "this engine's aliasing is broken: use another version of it, and report this one",
        ),
        graphs,
    ]


@contextmanager
def _stderr_closed() -> Iterator[None]:
    """ONNX Runtime tells of every cache that it must copy, on the process's stderr and past Python."""
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def examine_losslessness(patient: Patient) -> list[Finding]:
    """With the drafter and without: the same tokens, or nothing else matters."""
    drafted = patient.answers([patient.prompt(q) for q in patient.questions[:_QUESTIONS]])
    plain = [_plain(patient, question) for question in patient.questions[:_QUESTIONS]]
    plain = [tokens for tokens in plain if tokens is not None]
    if [a.token_ids for a in drafted] == plain:
        return [ok("lossless", f"{len(plain)} answers, the same tokens with the drafter and without")]
    return [
        fault(
            "lossless",
            "answers with the drafter differ from those without",
            "on a CPU this is a fault of ours: report it; on a GPU use the mode reproducible",
        )
    ]


def _plain(patient: Patient, question: str) -> tuple[int, ...] | None:
    decoder, tokens = patient.decoder, patient.decoder.encoder.encode(patient.prompt(question))
    if len(tokens) > decoder.engine.limits.max_len - patient.new_tokens:
        return None
    decoder.forget()
    return decoder.complete(tokens, max_new_tokens=patient.new_tokens, block_size=1).token_ids
