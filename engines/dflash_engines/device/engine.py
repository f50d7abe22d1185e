"""The engine over a device: an iteration is one launch and one small copy to the host, and another may run ahead.

What an iteration leaves for the next one (each slot's token, row and length) stays on the device.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dflash_engines import contract
from dflash_engines.accept_inputs import Mask, SlotRules, check_masks
from dflash_engines.contract import Geometry, Limits, Program
from dflash_engines.device.arena import DeviceArena
from dflash_engines.device.clock import Clock
from dflash_engines.device.device import Device
from dflash_engines.device.flight import Flight
from dflash_engines.device.graphs import GraphCounts, GraphKey
from dflash_engines.device.iteration import IterationWork
from dflash_engines.device.positions import Positions
from dflash_engines.device.prefill import Prefill
from dflash_engines.device.programs import DevicePrograms
from dflash_engines.device.ring import Ticket
from dflash_engines.device.watchdog import PATIENCE, Watchdog
from dflash_engines.device.workshop import Shares, Workshop
from dflash_engines.engine import Edit, History, Iteration, Timing
from dflash_engines.errors import EngineError
from dflash_engines.sampling import LIKELIEST, SamplingParameters

if TYPE_CHECKING:
    from dflash_engines.bundle import Bundle


class _Owned(Protocol):
    def release(self) -> None:
        """Give it back."""


_Part = TypeVar("_Part", bound=_Owned)
_FUSED = 0  # the one part of an iteration that is launched as a whole
_DRAFT, _TARGET, _ACCEPT = range(3)  # the parts of one that waits for masks in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What an engine must know of the pair whose programs it steps."""

    programs: tuple[Program, ...]
    geometry: Geometry
    mask_token_id: int
    bundle: "Bundle | None" = None  # None for programs that come from none


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to step them."""

    batches: tuple[int, ...]  # numbers of leading slots that may be computed together, ascending
    plain_rows: int  # rows of an iteration without the drafter; all but the first are padding
    run_ahead: int = 1  # iterations launched before the oldest is collected
    graphs: bool = True
    patience: float = PATIENCE  # seconds that one launch may take


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """An iteration that waits for masks."""

    work: IterationWork
    count: int
    active: NDArray[np.bool_]  # [B]


class DeviceEngine:
    """Implements `engine.Engine`. It owns device and programs, and gives them back in `close`."""

    def __init__(
        self, pair: Pair, device: Device, programs: DevicePrograms, limits: Limits, settings: Settings
    ) -> None:
        self.pair, self.device, self.programs, self.limits, self.settings = pair, device, programs, limits, settings
        self._row_sizes = sorted({*limits.block_sizes, settings.plain_rows})
        self._clock = Clock(device)
        self._laid_out: tuple[GraphKey, int] | None = None  # for which work, and how many rows in use
        self._begun: _Begun | None = None
        self._closed = False
        with ExitStack() as owned:  # what was made goes back when the rest can't be
            owned.callback(self._close_device)
            self.watchdog = Watchdog(device, settings.patience)
            owned.callback(self.watchdog.release)
            self._make_parts(owned)
            self._owned = owned.pop_all()

    def _make_parts(self, owned: ExitStack) -> None:
        def kept(part: _Part) -> _Part:
            owned.callback(self._unless_lost, part.release)
            return part

        device, limits, mask_token_id = self.device, self.limits, self.pair.mask_token_id
        kept(self.programs)
        self.arena = kept(DeviceArena(device, self.pair.programs, limits, self._row_sizes[-1]))
        self._positions = Positions(self.arena, limits, mask_token_id)
        self._flight = kept(Flight(self.arena, self._positions, self.watchdog, self.settings.run_ahead + 1))
        self._prefill = kept(Prefill(self.arena, self.programs, limits, mask_token_id, self.watchdog))
        self._workshop = kept(Workshop(self.arena, self.programs, limits, self.settings.graphs))

    @property
    def bundle(self) -> "Bundle":
        """The bundle this engine runs."""
        if self.pair.bundle is None:
            raise EngineError("these programs come from no bundle")
        return self.pair.bundle

    @property
    def timing(self) -> Timing:
        """The device's time. Of an iteration's graph, the programs get the shares that they took in a plain run."""
        return self._clock.timing()

    @property
    def counts(self) -> GraphCounts:
        """How iterations were run."""
        return self._workshop.graphs.counts

    @property
    def health(self) -> str | None:
        """Why this process can't go on; None as long as it can."""
        return self.device.lost

    def warm(self, accepts: Sequence[str]) -> None:
        """Run and record iterations at every block size with these accept programs, so that no request waits."""
        drafted = [(rows, "draft") for rows in self.limits.block_sizes if rows > 1]
        for rows, draft in [(self.settings.plain_rows, ""), *drafted]:
            for accept in accepts:
                batch = self.settings.batches[-1]
                self._work(GraphKey(slots=batch, rows=rows, draft=draft, accept=accept, split=False))

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> None:
        """Write the caches of `slot` for one chunk of prompt tokens, at most `prefill_chunk`; no logits."""
        self._rest()
        with self.watchdog.over_call():
            begin = self._clock.begin()
            self._prefill.rows(slot, tokens, start)
            self._clock.end(begin, {"prefill": 1.0})

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
        check_masks([rules], {} if mask is None else {0: mask}, self.pair.geometry, rows=1)
        self.prefill(slot, tokens, start)
        with self.watchdog.over_call():
            begin = self._clock.begin()
            awaited = self._prefill.accept(slot, tokens[-1], start + len(tokens) - 1, rules, mask)
            self._clock.end(begin, {"accept": 1.0})
        return self._prefill.first_token(awaited)

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
        self._positions.place(slot, anchor, start, limit, SlotRules(sampling, history))
        self._flight.leave(slot)

    def park(self, slot: int) -> None:
        """Take `slot` out of iterations; its caches stay for prefix reuse."""
        self._rest()
        self._positions.park(slot)
        self._flight.leave(slot)

    def clear(self, slot: int) -> None:
        """Zero the caches of `slot` (after non-finite numbers) and park it."""
        self.park(slot)
        for span in self.arena.slot_caches(slot, self.limits.cache_rows):
            self.device.zero(self.arena.buffer, span.offset, span.nbytes)

    @property
    def denoises(self) -> bool:
        """Draft, target and accept are one launch: the drafter runs once in it."""
        return False

    @property
    def can_launch(self) -> bool:
        """Whether the device may be given another iteration before the oldest is collected."""
        ahead = 0 if self._positions.counting else self.settings.run_ahead
        return self._begun is None and len(self._flight) <= ahead

    def launch(self, block_size: int) -> None:
        """Begin one iteration over all placed slots; 1 decodes plainly, without the drafter."""
        check_masks(self._positions.rules, {}, self.pair.geometry, block_size)
        if not self.can_launch:
            raise EngineError("an iteration waits to be collected; collect it before the next launch")
        work, shares = self._ready(block_size, split=False)
        with self.watchdog.over_call():
            begin = self._clock.begin()
            self._workshop.graphs.run(work.key, _FUSED)
            self._clock.end(begin, shares)
            self._flight.add(work, block_size, self._positions.placed)

    def begin(self, block_size: int, edit: Edit | None = None) -> NDArray[np.int64]:
        """Draft and begin the target's pass; returns the blocks [B,K], so that masks are computed while it runs."""
        if len(self._flight):
            raise EngineError("an iteration waits to be collected; collect it before the next one begins")
        work, _ = self._ready(block_size, split=True)
        with self.watchdog.over_call():
            self._stage(work, _DRAFT)
            ticket = self._flight.fetch()
        drafted = self._edited(work, ticket, block_size, edit) if edit is not None else None
        with self.watchdog.over_call():
            self._stage(work, _TARGET)
        self._begun = _Begun(work=work, count=block_size, active=self._positions.placed)
        return self._blocks(work, ticket, block_size) if drafted is None else drafted

    def _edited(self, work: IterationWork, ticket: Ticket, block_size: int, edit: Edit) -> NDArray[np.int64]:
        """The blocks as `edit` leaves them, on the device too."""
        drafted = self._blocks(work, ticket, block_size)
        edited = drafted.copy()
        edit(edited)
        if not np.array_equal(edited, drafted):
            self._positions.tell_blocks(work, edited)
        return edited

    def _blocks(self, work: IterationWork, ticket: Ticket, block_size: int) -> NDArray[np.int64]:
        return self._flight.of_all_slots(self._flight.peek(work, ticket)["block"][:, :block_size])

    def accept(self, masks: Mapping[int, Mask]) -> None:
        """End what `begin` began, with a mask [K,W] for every constrained slot; then `collect` it."""
        if self._begun is None:
            raise EngineError("nothing was begun")
        check_masks(self._positions.rules, masks, self.pair.geometry, self._begun.count)
        begun, self._begun = self._begun, None
        with self.watchdog.over_call():
            self._positions.tell_masks(begun.work, masks)
            self._stage(begun.work, _ACCEPT)
            self._flight.add(begun.work, begun.count, begun.active)

    def collect(self) -> Iteration:
        """Wait for the oldest launched iteration and return what it found."""
        return self._flight.collect()

    def discard(self) -> None:
        """Drop what was launched and not collected; slots that go on must be placed again."""
        self._begun = self._laid_out = None
        self._flight.clear()

    def close(self) -> None:
        """Give everything back. Nothing else may be called after it."""
        if self._closed:
            return
        self._closed = True
        self._unless_lost(self.device.synchronize)
        self._owned.close()

    def _close_device(self) -> None:
        self._unless_lost(self.device.close)

    def _unless_lost(self, give_back: Callable[[], None]) -> None:
        """Nothing can be given back to a device that is lost; the end of the process does it."""
        if self.device.lost is None:
            give_back()

    def _rest(self) -> None:
        """Raises EngineError while an iteration waits for masks: it works on the slots' caches."""
        if self._begun is not None:
            raise EngineError("an iteration has begun; accept or discard it first")

    def _ready(self, block_size: int, *, split: bool) -> tuple[IterationWork, Shares]:
        """The work of the next iteration; the device has been told what it must know."""
        self._rest()
        work, shares = self._work(self._key(block_size, split))
        known, self._laid_out = self._laid_out, None  # a launch that fails leaves nothing to go on from
        if known is None or known[0] != work.key:
            self._flight.land()
            self._positions.tell_all(work, block_size)
        else:
            self._positions.tell_changed(work, block_size)
            if known[1] != block_size:
                self._positions.tell_count(work, block_size)
        self._laid_out = (work.key, block_size)
        return work, shares

    def _key(self, block_size: int, split: bool) -> GraphKey:
        placed = np.flatnonzero(self._positions.placed)
        if not len(placed):
            raise EngineError("no slot is placed; place one before launching")
        if not 1 <= block_size <= self._row_sizes[-1]:
            raise EngineError(f"block size {block_size} is not within 1..{self._row_sizes[-1]}")
        wanted = self.settings.plain_rows if block_size == 1 else block_size
        return GraphKey(
            slots=next(count for count in self.settings.batches if count > placed[-1]),
            rows=next(rows for rows in self._row_sizes if rows >= wanted),
            draft="" if block_size == 1 else self._drafter(),
            accept=contract.cheapest(rules.sampling.variant for rules in self._positions.rules).name,
            split=split,
        )

    def _drafter(self) -> str:
        return "draft_noise" if any(rules.sampling.draws_drafts for rules in self._positions.rules) else "draft"

    def _work(self, key: GraphKey) -> tuple[IterationWork, Shares]:
        """A key's work; a new one is first made ready, with all slots idle on the device."""
        if key not in self._workshop:
            self._flight.land()
            work = self._workshop.bind(key)
            self._positions.tell_idle(work)
            self._laid_out = None
            self._workshop.make(work)
        return self._workshop.work(key)

    def _stage(self, work: IterationWork, part: int) -> None:
        begin = self._clock.begin()
        self._workshop.graphs.run(work.key, part)
        self._clock.end(begin, {work.stages[part][0]: 1.0})
