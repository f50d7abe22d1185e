"""Iterations between their launch and the loop's collecting them, oldest first."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.device.arena import DeviceArena, within
from dflash_engines.device.iteration import IterationWork
from dflash_engines.device.layout import Group
from dflash_engines.device.positions import Positions
from dflash_engines.device.ring import Ring, Ticket
from dflash_engines.device.watchdog import Watchdog
from dflash_engines.engine import Iteration, Logprobs
from dflash_engines.errors import EngineError

FOUND = ("block", "sampled", "accepted", "finite")  # what every accept program says


@dataclass(slots=True, kw_only=True)
class _Launched:
    """An iteration on its way."""

    work: IterationWork
    count: int  # rows in use
    ticket: Ticket
    active: NDArray[np.bool_]  # [B], of which slots it still is
    found: Iteration | None = None  # once it was read


class Flight:
    """What is in flight, and the ring that it lands in."""

    def __init__(self, arena: DeviceArena, positions: Positions, watchdog: Watchdog, depth: int) -> None:
        self._arena, self._positions, self._watchdog, self._depth = arena, positions, watchdog, depth
        self._results = arena.layout.groups[Group.RESULTS]
        self._ring = Ring(arena.device, self._results, depth)
        self._launched: deque[_Launched] = deque()

    def __len__(self) -> int:
        return len(self._launched)

    def fetch(self) -> Ticket:
        """Let the results of what was launched follow to the host."""
        return self._ring.fetch(self._arena.buffer)

    def peek(self, work: IterationWork, ticket: Ticket) -> dict[str, NDArray[Any]]:
        """Results by binding name, of the slots that were computed, once they are there."""
        return self._ring.take(ticket, within(work.arrays, self._results), self._watchdog)

    def add(self, work: IterationWork, count: int, active: NDArray[np.bool_]) -> None:
        """An iteration was launched. At most `depth` may be on their way."""
        if len(self) == self._depth:
            raise EngineError("an iteration waits to be collected; collect it before the next launch")
        self._launched.append(_Launched(work=work, count=count, ticket=self.fetch(), active=active))

    def leave(self, slot: int) -> None:
        """What is in flight is none of this slot's business any more."""
        for launched in self._launched:
            launched.active[slot] = False
            if launched.found is not None:
                launched.found.active[slot] = False

    def collect(self) -> Iteration:
        """The oldest one."""
        if not len(self):
            raise EngineError("nothing was launched")
        found = self._read(self._launched[0])
        self._launched.popleft()
        return found

    def land(self) -> None:
        """Read all that is in flight; it can still be collected."""
        for launched in self._launched:
            self._read(launched)

    def clear(self) -> None:
        """Forget what is in flight."""
        self._launched.clear()

    def release(self) -> None:
        """Give the ring back."""
        self._ring.release()

    def _read(self, launched: _Launched) -> Iteration:
        if launched.found is None:
            results = self.peek(launched.work, launched.ticket)
            launched.found = self._iteration(results, launched)
            self._positions.advance(launched.found, results["next_start"])
        return launched.found

    def _iteration(self, results: Mapping[str, NDArray[Any]], launched: _Launched) -> Iteration:
        """The rows in use of all slots."""
        whole = {name: self.of_all_slots(value) for name, value in results.items()}
        rows = {name: value[:, : launched.count] if value.ndim > 1 else value for name, value in whole.items()}
        found = {name: rows[name] for name in FOUND}
        return Iteration(**found, active=launched.active.copy(), logprobs=Logprobs.among(rows))

    def of_all_slots(self, values: NDArray[Any]) -> NDArray[Any]:
        """[slots computed, …] as [B, …], zeros for the rest."""
        full = np.zeros((len(self._positions.placed), *values.shape[1:]), values.dtype)
        full[: len(values)] = values
        return full
