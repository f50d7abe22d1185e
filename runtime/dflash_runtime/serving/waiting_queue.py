"""Requests that wait for a slot: by priority, then first come, first served; bounded."""

import heapq
from collections.abc import Sequence
from itertools import count
from threading import Condition

from dflash_engines.errors import RequestError
from dflash_runtime.serving.errors import ClosedError, QueueFullError
from dflash_runtime.serving.generation import Generation


class WaitingQueue:
    """Any thread puts in; the scheduler's takes out.

    The bound is on all requests in flight: `slots` that run and `size` that wait. So a burst that finds the
    slots free is not refused because the scheduler is in the midst of an iteration.
    """

    def __init__(self, *, slots: int, size: int) -> None:
        self.slots, self.size = slots, size
        self.seconds_each = 1.0  # an answer's usual time in its slot; the scheduler keeps it true
        self.running = 0
        self._heap: list[tuple[int, int, Generation]] = []
        self._arrivals = count()
        self._changed = Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def closed(self) -> bool:
        """Whether nothing is taken in any more."""
        return self._closed

    def put(self, generations: Sequence[Generation]) -> None:
        """All or none. Raises QueueFullError, ClosedError, or RequestError for more than could ever fit."""
        if len(generations) > self.slots + self.size:
            raise RequestError(f"{len(generations)} answers at once are more than the {self.slots + self.size} in all")
        with self._changed:
            if self._closed:
                raise ClosedError("the service is shutting down; send the request elsewhere")
            if len(self) + self.running + len(generations) > self.slots + self.size:
                raise self._full()
            for generation in generations:
                heapq.heappush(self._heap, (generation.urgency.priority, next(self._arrivals), generation))
            self._changed.notify()

    def pop(self) -> Generation | None:
        """The next to run, if any waits; it counts as running until `done`."""
        with self._changed:
            if not self._heap:
                return None
            self.running += 1
            return heapq.heappop(self._heap)[-1]

    def done(self) -> None:
        """One that ran has ended."""
        with self._changed:
            self.running -= 1

    def remove_unwanted(self, now: float) -> list[Generation]:
        """Take out those that are cancelled or too late."""
        with self._changed:
            unwanted = [entry for entry in self._heap if entry[-1].cancelled or entry[-1].expired(now)]
            if unwanted:
                self._heap = [entry for entry in self._heap if entry not in unwanted]
                heapq.heapify(self._heap)
            return [entry[-1] for entry in unwanted]

    def remove_all(self) -> list[Generation]:
        """Take out everything."""
        with self._changed:
            removed, self._heap = self._heap, []
            return [entry[-1] for entry in removed]

    def wait(self) -> None:
        """Until something waits for a slot, or the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._heap or self._closed)

    def close(self) -> None:
        """Take in nothing more; what waits may still be served."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _full(self) -> QueueFullError:
        retry_after = max(1.0, self.seconds_each * (len(self) + 1) / self.slots)
        return QueueFullError(
            f"{len(self) + self.running} requests are in flight, which is all that this server takes in; "
            f"try again in {retry_after:.0f} s",
            retry_after=retry_after,
        )
