"""The decode loop: prefill in chunks, then draft, target, accept, over a set of slots.

It works on token ids and any engine; it knows no text and no queue.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_engines.engine import Engine, Iteration
from dflash_engines.errors import DflashError, EngineError, RequestError
from dflash_runtime.block_size import BlockSizes
from dflash_runtime.cost_table import CostTable, measure
from dflash_runtime.request import Request, check_request
from dflash_runtime.slot import FinishReason, Slot
from dflash_runtime.structured.constraint import Constraint
from dflash_runtime.token_logprobs import TokenLogprobs, token_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a request gained in one target pass."""

    slot: int
    token_ids: tuple[int, ...]
    accepted: int  # of token_ids, the leading ones that were drafted
    acceptance_length: int | None  # tokens gained by the pass before any truncation; None for the prefill's
    finish_reason: FinishReason | None
    block_size: int | None  # of the pass, anchor included; None for the prefill's
    logprobs: tuple[TokenLogprobs, ...] = ()  # of token_ids, where they were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request that ended with an error; the others in flight go on."""

    slot: int
    error: DflashError


class DecodeLoop:
    """Steps the requests of an engine's slots. Calls are made from one thread."""

    def __init__(self, engine: Engine, costs: Callable[[], CostTable] | None = None) -> None:
        """`costs` gives the engine's cost table when it is first needed; by default it is measured."""
        self._engine = engine
        self._costs = costs or (lambda: measure(engine))
        self._block_sizes: BlockSizes | None = None  # not before a request leaves the choice to us
        self.slots = tuple(Slot(index=i) for i in range(engine.limits.max_batch))
        self._turns = 0
        self._in_flight = 0  # iterations launched and not yet collected

    def admit(self, slot: int, request: Request) -> None:
        """Give `request` a free slot. Raises RequestError when the request or the slot is not fit for it."""
        check_request(request, limits=self._engine.limits, manifest=self._engine.bundle.manifest)
        if request.sampling.denoise_steps > 1 and not self._engine.denoises:
            raise RequestError("this engine drafts a block in one step; leave denoise_steps at 1")
        if self.slots[slot].request is not None:
            raise RequestError("another generation is running here; finish or close it before starting one")
        if request.block_size is None:
            self.prepare()
        if self._block_sizes is not None:
            self._block_sizes.admit(slot)
        self._turns += 1
        self.slots[slot].admit(request, self._turns)

    def prepare(self) -> None:
        """Find out what each block size costs, unless it is known, or a request is in flight: slots are cleared.

        The first request without a block size of its own does it, in a few seconds at most; a server does it at its
        start.
        """
        if self._block_sizes is None and all(slot.request is None for slot in self.slots):
            for slot in self.slots:
                slot.forget()
            self._block_sizes = BlockSizes(self._costs())

    def release(self, slot: int) -> None:
        """End the slot's request, finished or not; its rows stay for a request with the same prefix."""
        self._engine.park(slot)
        self.slots[slot].request = self.slots[slot].constraint = None

    def abandon(self, slot: int) -> None:
        """End the slot's request and zero its caches: none of its rows can be trusted any more."""
        self._engine.clear(slot)
        self.release(slot)
        self.slots[slot].forget()

    def step(self) -> list[Progress | Failure]:
        """One iteration over the slots that decode, then at most one chunk of prompt for one that joins."""
        return [*self.decode(), *self.prefill()]

    def decode(self) -> list[Progress | Failure]:
        """One iteration over the slots that decode. An error leaves all of them where they were."""
        decoding = [slot for slot in self.slots if slot.decoding]
        return self._iterate(decoding) if decoding else []

    def decode_alone(self, slot: int) -> list[Progress | Failure]:
        """Like `decode`, over one slot, while the others wait."""
        for other in self.slots:
            if other.index != slot:
                self._engine.park(other.index)
        self._step_back([self.slots[slot]])
        try:
            return self._iterate([self.slots[slot]])
        finally:
            self._step_back([slot for slot in self.slots if slot.decoding])

    @property
    def joining(self) -> Slot | None:
        """The slot whose prompt is computed next: the first to have joined."""
        return min((slot for slot in self.slots if slot.joining), key=lambda slot: slot.turn, default=None)

    def prefill(self, most_rows: int | None = None) -> list[Progress | Failure]:
        """A chunk of the prompt of `joining`, of `most_rows` if that is less than the engine's."""
        chunk = self._engine.limits.prefill_chunk
        rows = chunk if most_rows is None else min(most_rows, chunk)
        return self._prefill(self.joining, rows) if self.joining is not None else []

    def run(self, slot: int, request: Request) -> Generator[Progress, None, None]:
        """Admit `request`, step until it ends, release its slot; also when the iterator is dropped half-way.

        Other slots' progress is not reported. Raises the error that ended the request.
        """
        self.admit(slot, request)
        try:
            while self.slots[slot].request is request:
                for event in self.step():
                    if event.slot != slot:
                        continue
                    if isinstance(event, Failure):
                        raise event.error
                    yield event
        finally:
            if self.slots[slot].request is request:  # not one that came after
                self.release(slot)

    def _prefill(self, slot: Slot, rows: int) -> list[Progress | Failure]:
        assert slot.request is not None
        chunk = slot.request.tokens[slot.rows : slot.rows + rows]
        start = slot.rows
        if start + len(chunk) < len(slot.request.tokens):
            self._engine.prefill(slot.index, chunk, start)
            slot.rows += len(chunk)
            return []
        mask = None if slot.constraint is None else slot.constraint.masks(())
        found = self._engine.finish_prefill(
            slot.index, chunk, start, slot.request.sampling, history=slot.history, mask=mask
        )
        slot.rows += len(chunk)
        return [self._commit(slot, found, row=0, verified=False)]

    def _iterate(self, slots: list[Slot]) -> list[Progress | Failure]:
        """One iteration; any block size gives the same tokens."""
        accepting = self._engine.timing.accept
        try:
            self._launch(slots, self._block_size(slots))
            found = self._engine.collect()
            self._in_flight -= 1
        except BaseException:  # Ctrl-C too: what the engine found is lost, the slots' tokens are not
            self._step_back(slots)
            raise
        if self._block_sizes is not None:
            seconds = self._engine.timing.accept - accepting
            self._block_sizes.observe_accept(_lengths(slots), block_size=found.block.shape[1], seconds=seconds)
        return [self._commit(slot, found, row=slot.index, verified=True) for slot in slots if found.active[slot.index]]

    def _block_size(self, slots: list[Slot]) -> int:
        """The largest that is asked for, or the best for all slots where one leaves it open and it is larger."""
        requests = [slot.request for slot in slots if slot.request is not None]
        asked = [request.block_size for request in requests if request.block_size is not None]
        if len(asked) < len(requests):
            steps = max(request.sampling.denoise_steps for request in requests)
            largest, sizes = max(self._engine.limits.block_sizes), self._block_sizes
            asked.append(largest if sizes is None else sizes.choose(_lengths(slots), denoise_steps=steps))
        return max(asked)

    def _launch(self, slots: list[Slot], block_size: int) -> None:
        """As many iterations as the engine takes; but one at a time where masks depend on what it drafts."""
        constraints = {slot.index: slot.constraint for slot in slots if slot.constraint is not None}
        while not constraints and self._engine.can_launch:
            self._engine.launch(block_size)
            self._in_flight += 1
        if constraints and not self._in_flight:
            self._launch_constrained(constraints, block_size)
            self._in_flight += 1

    def _launch_constrained(self, constraints: dict[int, Constraint], block_size: int) -> None:
        """Any draft is right; one that the grammar has had a hand in is accepted more often."""

        def steer(blocks: NDArray[np.int64]) -> None:
            for slot, constraint in constraints.items():
                blocks[slot, 1:] = constraint.steer(blocks[slot, 1:].tolist())

        drafted = self._engine.begin(block_size, steer)[:, 1:].tolist()
        self._engine.accept({slot: constraint.masks(drafted[slot]) for slot, constraint in constraints.items()})

    def _commit(self, slot: Slot, found: Iteration, *, row: int, verified: bool) -> Progress | Failure:
        if not found.finite[row]:
            return self._fail(slot)
        assert slot.request is not None
        top = slot.request.sampling.controls.logprobs
        gained = [int(token) for token in found.sampled[row, : found.accepted[row] + 1]]
        if verified:
            slot.rows = len(slot.tokens) - 1 + len(gained)
            if self._block_sizes is not None:
                self._block_sizes.observe(slot.index, block_size=found.block.shape[1], gained=len(gained))
        try:
            kept, reason = slot.commit(gained, self._engine.limits.max_len)
        except RequestError as e:
            self.release(slot.index)
            return Failure(slot=slot.index, error=e)
        if reason is not None:
            self.release(slot.index)
        elif not verified:
            self._place(slot)
        return Progress(
            slot=slot.index,
            token_ids=kept,
            accepted=min(len(kept), len(gained) - 1),
            acceptance_length=len(gained) if verified else None,
            finish_reason=reason,
            block_size=found.block.shape[1] if verified else None,
            logprobs=token_logprobs(found.logprobs, row, kept, top),
        )

    def _place(self, slot: Slot) -> None:
        """The slot's last token is the anchor of its next block; it has no row yet."""
        assert slot.request is not None
        start, sampling = len(slot.tokens) - 1, slot.request.sampling
        self._engine.place(
            slot.index, slot.tokens[-1], start, self._engine.limits.max_len, sampling, history=slot.history
        )

    def _step_back(self, slots: list[Slot]) -> None:
        """After a pass that broke off: begin again where each slot's tokens end."""
        self._engine.discard()
        self._in_flight = 0
        for slot in slots:
            self._place(slot)

    def _fail(self, slot: Slot) -> Failure:
        """Numbers overflowed: no row of this slot can be trusted any more."""
        self.abandon(slot.index)
        return Failure(
            slot=slot.index,
            error=EngineError(
                "the target's logits held NaN or infinity, so the request was ended; "
                "an overflow of this precision, most likely: export with a wider one"
            ),
        )


def _lengths(slots: list[Slot]) -> dict[int, int]:
    """Live tokens by slot."""
    return {slot.index: len(slot.tokens) for slot in slots}
