"""The engine over host memory: steps slots with any backend that implements `Programs`.

It owns the arena and each slot's position, and knows no backend. A request's bits depend neither on its
company nor on block sizes or chunk borders, as long as no call has one row in all: that takes another
numerical path.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines import contract
from dflash_engines.accept_inputs import IDLE, Mask, SlotRules, check_masks
from dflash_engines.arena import Arena, Sizes
from dflash_engines.backend import Buffers, Options, Programs, Run
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Dim, Limits, Program
from dflash_engines.denoise import keep_surest, steps_for
from dflash_engines.engine import Edit, History, Iteration, Logprobs, Timing
from dflash_engines.errors import EngineError
from dflash_engines.manifest import Manifest
from dflash_engines.sampling import LIKELIEST, SamplingParameters
from dflash_engines.whole_number import whole_number

_FOUND = ("block", "sampled", "accepted", "finite")
_REPORTED = ("logprob", "top_tokens", "top_logprobs")
MIN_ROWS = 2  # of any call; a single token is padded, and the row written for the pad is overwritten later


def declared_programs(manifest: Manifest) -> tuple[Program, ...]:
    """The programs that an engine of this bundle runs, as the contract declares them."""
    target = contract.target(manifest.geometry, hidden_output=manifest.hidden_output)
    variants = [variant for variant in contract.ACCEPT_VARIANTS if variant.name in manifest.programs]
    accepts = (contract.accept(manifest.geometry, variant) for variant in variants)
    drafts = [contract.draft(manifest.geometry)]
    if "draft_noise" in manifest.programs:
        drafts.append(contract.draft(manifest.geometry, noise=True))
    return (target, *drafts, *accepts)


def host_limits(bundle: Bundle, options: Options) -> Limits:
    """The bundle's limits with what `options` asks for. Any number of slots runs on the host."""
    limits = bundle.manifest.limits
    max_len = limits.max_len if options.max_len is None else whole_number(options.max_len)
    if max_len is None or not 1 <= max_len <= limits.max_len:
        raise EngineError(
            f"max_len {options.max_len!r} is not a whole number within 1..{limits.max_len}, "
            f"which {bundle.path} was exported for"
        )
    slots = limits.max_batch if options.slots is None else whole_number(options.slots)
    if slots is None or slots < 1:
        raise EngineError(f"slots must be a whole number of at least 1, not {options.slots!r}")
    return replace(limits, max_len=max_len, max_batch=slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One program bound to the arrays of one call shape."""

    run: Run
    arrays: Buffers  # by binding name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decode:
    """The three programs bound for `count` slots from `first` on, S = R = K = `rows`."""

    first: int
    count: int
    draft: _Call
    target: _Call
    accept: _Call

    @property
    def slots(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """An iteration whose target pass runs."""

    decode: _Decode
    block_size: int
    target: Future[None]


class HostEngine:
    """Implements `engine.Engine`. Iterations run in `launch`; `collect` hands over what they found."""

    plain_rows = MIN_ROWS  # rows of an iteration without the drafter; all but the first are padding

    def __init__(self, bundle: Bundle, programs: Programs, limits: Limits) -> None:
        self.bundle = bundle
        self.programs = programs
        self.limits = limits
        self._widest = max(*limits.block_sizes, MIN_ROWS)
        decode = self._sizes(slots=limits.max_batch, rows_in=self._widest, rows_out=self._widest)
        prefill = self._sizes(slots=1, rows_in=limits.prefill_chunk, rows_out=1)
        self._arena = Arena(declared_programs(bundle.manifest), (decode, prefill))
        self._decodes: dict[tuple[int, int, int, str, str], _Decode] = {}
        self._anchor = np.zeros(limits.max_batch, np.int64)
        self._start = np.zeros(limits.max_batch, np.int64)
        self._limit = np.zeros(limits.max_batch, np.int64)
        self._placed = np.zeros(limits.max_batch, np.bool_)
        self._rules = [IDLE] * limits.max_batch
        self._worker = ThreadPoolExecutor(max_workers=1)  # for target passes that masks are computed beside
        self._begun: _Begun | None = None
        self._laid_out: _Decode | None = None  # whose next block lies ready in the drafter's input
        self._found: Iteration | None = None
        self._seconds = {"prefill": 0.0, "draft": 0.0, "target": 0.0, "accept": 0.0}

    @property
    def timing(self) -> Timing:
        """Where the time went so far."""
        return Timing(**self._seconds)

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> None:
        """Write the caches of `slot` for one chunk of prompt tokens, at most `prefill_chunk`; no logits."""
        rows = max(len(tokens), MIN_ROWS)
        self._rest()
        call = self._bind("target", slot, self._sizes(slots=1, rows_in=rows, rows_out=1))
        arrays = call.arrays
        arrays["tokens"][0, : len(tokens)] = tokens
        arrays["tokens"][0, len(tokens) :] = self.bundle.manifest.mask_token_id
        arrays["start"][0] = start
        arrays["length"][0] = start + rows
        arrays["rows"][0, 0] = len(tokens) - 1
        self._timed("prefill", call)

    def finish_prefill(
        self,
        slot: int,
        tokens: Sequence[int],
        start: int,
        sampling: SamplingParameters = LIKELIEST,
        *,
        history: History | None = None,
        mask: Mask | None = None,
    ) -> Iteration:
        """Like `prefill` for the last chunk; returns the first new token, as an Iteration of B=1, K=1."""
        rules = SlotRules(sampling, history)
        check_masks([rules], {} if mask is None else {0: mask}, self.bundle.manifest.geometry, rows=1)
        self.prefill(slot, tokens, start)
        call = self._bind(sampling.variant.name, slot, self._sizes(slots=1, rows_in=1, rows_out=1))
        arrays = call.arrays
        arrays["block"][0, 0] = tokens[-1]
        arrays["start"][0] = start + len(tokens) - 1
        arrays["forced"][0] = arrays["count"][0] = 1
        arrays["limit"][0] = self.limits.max_len
        rules.fill(arrays, 0, mask)
        self._laid_out = None
        self._timed("accept", call)
        found = {name: arrays[name].copy() for name in (*_FOUND, *_REPORTED) if name in arrays}
        return Iteration(
            **{name: found[name] for name in _FOUND}, active=np.ones(1, np.bool_), logprobs=Logprobs.among(found)
        )

    def place(
        self,
        slot: int,
        anchor: int,
        start: int,
        limit: int,
        sampling: SamplingParameters = LIKELIEST,
        *,
        history: History | None = None,
    ) -> None:
        """Let `slot` take part in iterations: its next block begins with `anchor` at row `start`."""
        self._rest()
        self._rules[slot] = SlotRules(sampling, history)
        self._anchor[slot], self._start[slot], self._limit[slot] = anchor, start, limit
        self._placed[slot] = True
        self._part(slot)

    def park(self, slot: int) -> None:
        """Take `slot` out of iterations; its caches stay for prefix reuse."""
        self._rest()
        self._rules[slot] = IDLE
        self._placed[slot] = False
        self._part(slot)

    def _part(self, slot: int) -> None:
        """What was launched before is none of this slot's business any more."""
        self._laid_out = None
        if self._found is not None:
            self._found.active[slot] = False

    def clear(self, slot: int) -> None:
        """Zero the caches of `slot` (after non-finite numbers) and park it."""
        self.park(slot)
        one_slot = self._sizes(slots=1, rows_in=MIN_ROWS, rows_out=1)
        for program in ("target", "draft"):
            arrays = self._arena.views(program, one_slot, slot)
            for name in self._arena.programs[program].updated.values():
                arrays[name].fill(0)

    @property
    def denoises(self) -> bool:
        """The drafter's input is the host's to change between two launches."""
        return True

    @property
    def can_launch(self) -> bool:
        """Iterations run in `launch`: there is nothing to gain from running ahead."""
        return self._found is None and self._begun is None

    def launch(self, block_size: int) -> None:
        """Run one iteration over the placed slots; 1 decodes plainly, without the drafter."""
        check_masks(self._rules, {}, self.bundle.manifest.geometry, block_size)
        decode = self._drafted(block_size)
        self._timed("target", decode.target)
        self._accept(decode, block_size, {})

    def begin(self, block_size: int, edit: Edit | None = None) -> NDArray[np.int64]:
        """Like `launch` up to the target's pass, which runs on; returns the blocks [B,K] to compute masks from."""
        decode = self._drafted(block_size)
        drafted = decode.target.arrays["tokens"][:, :block_size]
        block = self._of_all_slots(decode, drafted)
        if edit is not None:
            edit(block)
            drafted[:] = block[decode.slots]
        running = self._worker.submit(self._timed, "target", decode.target)
        self._begun = _Begun(decode=decode, block_size=block_size, target=running)
        return block

    def accept(self, masks: Mapping[int, Mask]) -> None:
        """Wait for the target's pass and end the iteration, with a mask [K,W] for every constrained slot."""
        if self._begun is None:
            raise EngineError("nothing was begun")
        check_masks(self._rules, masks, self.bundle.manifest.geometry, self._begun.block_size)
        begun, self._begun = self._begun, None
        begun.target.result()
        self._accept(begun.decode, begun.block_size, masks)

    def _drafted(self, block_size: int) -> _Decode:
        """The calls of one iteration, ready for the target's."""
        self._rest()
        if self._found is not None:
            raise EngineError("an iteration waits to be collected; collect it before the next launch")
        if not 1 <= block_size <= self._widest:
            raise EngineError(f"block size {block_size} is not within 1..{self._widest}")
        rows = self.plain_rows if block_size == 1 else block_size
        decode = self._decode(rows)
        self._set_positions(decode, block_size, rows)
        if block_size == 1:
            self._pad_anchors(decode)
        else:
            self._draft(decode, rows)
        self._laid_out = None  # a call that fails leaves nothing to go on from
        return decode

    def _accept(self, decode: _Decode, block_size: int, masks: Mapping[int, Mask]) -> None:
        for row, slot in enumerate(range(self.limits.max_batch)[decode.slots]):
            self._rules[slot].fill(decode.accept.arrays, row, masks.get(slot))
        self._timed("accept", decode.accept)
        self._found = self._advance(decode, block_size)
        self._laid_out = decode

    def _rest(self) -> None:
        """Raises EngineError while a target pass runs: it works on the slots' caches."""
        if self._begun is not None:
            raise EngineError("an iteration has begun; accept or discard it first")

    def collect(self) -> Iteration:
        """Return what the launched iteration found."""
        if self._found is None:
            raise EngineError("nothing was launched")
        found, self._found = self._found, None
        return found

    def discard(self) -> None:
        """Drop what was launched and not collected; slots that go on must be placed again."""
        begun, self._begun = self._begun, None
        if begun is not None:
            wait([begun.target])
        self._found = self._laid_out = None

    def _decode(self, rows: int) -> _Decode:
        """The calls over the shortest run of slots that holds all placed ones."""
        placed = np.flatnonzero(self._placed)
        if not len(placed):
            raise EngineError("no slot is placed; place one before launching")
        first, count = int(placed[0]), int(placed[-1] - placed[0]) + 1
        variant = contract.cheapest(rules.sampling.variant for rules in self._rules).name
        drafter = "draft_noise" if any(rules.sampling.draws_drafts for rules in self._rules) else "draft"
        key = (first, count, rows, drafter, variant)
        if key not in self._decodes:
            sizes = self._sizes(slots=count, rows_in=rows, rows_out=rows)
            draft, target, accept = (self._bind(name, first, sizes) for name in (drafter, "target", variant))
            self._decodes[key] = _Decode(first=first, count=count, draft=draft, target=target, accept=accept)
        return self._decodes[key]

    def _set_positions(self, decode: _Decode, block_size: int, rows: int) -> None:
        """Idle slots write to the guard rows and attend to one row: their caches stay as they are."""
        placed, target, accept = self._placed[decode.slots], decode.target.arrays, decode.accept.arrays
        target["start"][:] = np.where(placed, self._start[decode.slots], self.limits.max_len)
        target["length"][:] = np.where(placed, target["start"] + rows, 1)
        target["rows"][:] = np.arange(rows)
        accept["forced"][:] = 1
        accept["count"][:] = np.where(placed, block_size, 0)
        accept["limit"][:] = np.where(placed, self._limit[decode.slots], self.limits.max_len)

    def _pad_anchors(self, decode: _Decode) -> None:
        block = decode.target.arrays["tokens"]
        block[:, 0] = self._anchor[decode.slots]
        block[:, 1:] = self.bundle.manifest.mask_token_id

    def _draft(self, decode: _Decode, rows: int) -> None:
        arrays, mask = decode.draft.arrays, self.bundle.manifest.mask_token_id
        if self._laid_out is not decode:
            arrays["tokens"][:, 0] = self._anchor[decode.slots]
            arrays["tokens"][:, 1:] = mask
        rules = [rules.sampling for rules in self._rules[decode.slots]]
        for name in {"seed", "draft_temperature"} & arrays.keys():
            arrays[name][:] = [getattr(sampling, name) for sampling in rules]
        steps = steps_for(rows, max(sampling.denoise_steps for sampling in rules))
        for step in range(1, steps):
            self._timed("draft", decode.draft)
            arrays["tokens"][:] = keep_surest(
                arrays["tokens"], arrays["block"], arrays["confidence"], part=step / steps, mask_token_id=mask
            )
        self._timed("draft", decode.draft)

    def _advance(self, decode: _Decode, block_size: int) -> Iteration:
        placed, arrays = self._placed[decode.slots], decode.accept.arrays
        self._start[decode.slots][placed] = arrays["next_start"][placed]
        self._anchor[decode.slots][placed] = arrays["next_tokens"][placed, 0]
        names = [name for name in (*_FOUND, *_REPORTED) if name in arrays]
        found = {name: self._of_all_slots(decode, arrays[name]) for name in names}
        found |= {name: value[:, :block_size] for name, value in found.items() if value.ndim > 1}
        for rules, tokens, accepted in zip(self._rules, found["sampled"], found["accepted"], strict=True):
            rules.commit(tokens[: accepted + 1])
        return Iteration(
            **{name: found[name] for name in _FOUND}, active=self._placed.copy(), logprobs=Logprobs.among(found)
        )

    def _of_all_slots(self, decode: _Decode, values: NDArray[Any]) -> NDArray[Any]:
        full = np.zeros((self.limits.max_batch, *values.shape[1:]), values.dtype)
        full[decode.slots] = values
        return full

    def _sizes(self, *, slots: int, rows_in: int, rows_out: int) -> Sizes:
        rows = self.limits.cache_rows
        return {
            Dim.SLOTS: slots,
            Dim.ROWS_IN: rows_in,
            Dim.ROWS_OUT: rows_out,
            Dim.BLOCK: rows_out,
            Dim.CACHE_ROWS: rows,
        }

    def _bind(self, program: str, first_slot: int, sizes: Sizes) -> _Call:
        arrays = self._arena.views(program, sizes, first_slot)
        declared = self._arena.programs[program]
        inputs = {b.name: arrays[b.name] for b in declared.inputs}
        outputs = {b.name: arrays[b.name] for b in declared.outputs}
        return _Call(run=self.programs.bind(program, inputs, outputs), arrays=arrays)

    def _timed(self, kind: str, call: _Call) -> None:
        begin = perf_counter()
        call.run()
        self._seconds[kind] += perf_counter() - begin


class SingleRowEngine(HostEngine):
    """Decodes plainly in calls of one row: the fastest plain decoding, a benchmark's honest baseline.

    Not for answers: its numbers differ in the last bits from those of every other call.
    """

    plain_rows = 1
