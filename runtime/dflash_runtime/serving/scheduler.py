"""Continuous batching: requests join and leave an engine's slots between its iterations.

A scheduler is passive: whoever drives it, a thread of its own or a caller's, calls `step`. All calls but those of
the queue come from one thread.
"""

from collections.abc import Callable
from time import monotonic

from dflash_engines.engine import Engine
from dflash_engines.errors import DeviceError, DflashError, EngineError, RequestError
from dflash_runtime.completion import Completion, time_split
from dflash_runtime.cost_table import CostTable
from dflash_runtime.loop import DecodeLoop, Failure, Progress
from dflash_runtime.serving.errors import CancelledError, DeadlineError
from dflash_runtime.serving.generation import Generation
from dflash_runtime.serving.observer import Observer
from dflash_runtime.serving.pacer import Pacer
from dflash_runtime.serving.waiting_queue import WaitingQueue
from dflash_runtime.slot import Slot, shared_prefix

Found = list[Progress | Failure]
_SMOOTHING = 1 / 8  # of the usual time in a slot


class Scheduler:
    """Decides what the engine does next, and hands every request what it gained."""

    def __init__(
        self,
        engine: Engine,
        *,
        queue: WaitingQueue,
        pacer: Pacer,
        observer: Observer,
        costs: Callable[[], CostTable] | None = None,
    ) -> None:
        """`costs` are as DecodeLoop's."""
        self._engine, self._queue, self._pacer, self._observer = engine, queue, pacer, observer
        self._loop = DecodeLoop(engine, costs)
        self._running: dict[int, Generation] = {}  # by slot

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do until a request comes."""
        return not self._running and not len(self._queue)

    def step(self) -> None:
        """Let requests leave and join, then one iteration, then one chunk of a prompt. Raises DeviceError: the end."""
        self._drop_unwanted(monotonic())
        self._admit()
        self._decode()
        self._prefill()

    def end_all(self, fault: DflashError) -> None:
        """Every request, waiting or running, ends with `fault`; the engine is not asked again."""
        for generation in self._queue.remove_all():
            self._tell_end(generation, fault)
        for slot in list(self._running):
            self._end(slot, fault)

    def _drop_unwanted(self, now: float) -> None:
        for generation in self._queue.remove_unwanted(now):
            self._tell_end(generation, _reason(generation))
        for slot, generation in list(self._running.items()):
            if generation.cancelled or generation.expired(now):
                self._loop.release(slot)
                self._end(slot, _reason(generation))

    def _admit(self) -> None:
        while free := [slot for slot in self._loop.slots if slot.request is None]:
            generation = self._queue.pop()
            if generation is None:
                return
            slot = _best(free, generation)
            self._running[slot.index] = generation
            try:
                self._loop.admit(slot.index, generation.answer.request)
            except RequestError as fault:
                self._end(slot.index, fault)
                continue
            generation.admitted, generation.engine_at_admission = monotonic(), self._engine.timing
            self._observer.admitted(generation, generation.admitted - generation.arrived)

    def _decode(self) -> None:
        if not any(slot.decoding for slot in self._loop.slots):
            return
        begin = monotonic()
        try:
            found = self._loop.decode()
        except DeviceError:
            raise
        except EngineError:
            found = self._decode_one_by_one()
        self._pacer.iterated(monotonic() - begin)
        self._deliver(found)

    def _decode_one_by_one(self) -> Found:
        """An iteration failed: it is repeated for each slot alone, and only those that fail again end by it."""
        found: Found = []
        for slot in [slot.index for slot in self._loop.slots if slot.decoding]:
            try:
                found.extend(self._loop.decode_alone(slot))
            except DeviceError:
                raise
            except EngineError as fault:
                found.append(self._abandon(slot, fault))
        return found

    def _prefill(self) -> None:
        slot = self._loop.joining
        if slot is None:
            return
        decoding = any(other.decoding for other in self._loop.slots)
        most_rows = self._pacer.rows() if decoding else None
        before, begin = slot.rows, monotonic()
        try:
            found = _twice(lambda: self._loop.prefill(most_rows))
        except DeviceError:
            raise
        except EngineError as fault:
            found = [self._abandon(slot.index, fault)]
        if slot.rows > before:
            self._pacer.prefilled(slot.rows - before, monotonic() - begin)
        self._deliver(found)

    def _abandon(self, slot: int, fault: EngineError) -> Failure:
        self._loop.abandon(slot)
        return Failure(slot=slot, error=fault)

    def _deliver(self, found: Found) -> None:
        for event in found:
            if isinstance(event, Failure):
                self._end(event.slot, event.error)
            else:
                self._deliver_step(event)

    def _deliver_step(self, progress: Progress) -> None:
        generation, now = self._running[progress.slot], monotonic()
        step = generation.answer.push(progress)
        since = now - (generation.arrived if generation.told is None else generation.told)
        self._observer.stepped(generation, step, since, first=generation.told is None)
        generation.told = now
        generation.deliver(step)
        if step.finish_reason is not None:
            if progress.finish_reason is None:
                self._loop.release(progress.slot)
            self._end(progress.slot, self._completion(progress.slot, generation, now))

    def _completion(self, slot: int, generation: Generation, now: float) -> Completion:
        """In company, a pass counts in full for every request that it served."""
        assert generation.admitted is not None
        assert generation.engine_at_admission is not None
        taken = now - generation.admitted
        self._queue.seconds_each += _SMOOTHING * (taken - self._queue.seconds_each)
        split = time_split(generation.engine_at_admission, self._engine.timing, taken)
        return generation.answer.completion(reused_tokens=self._loop.slots[slot].reused, seconds=split)

    def _end(self, slot: int, outcome: Completion | DflashError) -> None:
        generation = self._running.pop(slot)
        self._queue.done()
        self._tell_end(generation, outcome)

    def _tell_end(self, generation: Generation, outcome: Completion | DflashError) -> None:
        self._observer.ended(generation, outcome)
        generation.deliver(outcome)


def _best(free: list[Slot], generation: Generation) -> Slot:
    """The slot that holds the longest part of the prompt; of equal ones, the one that was used longest ago."""
    tokens = generation.answer.request.tokens
    return max(free, key=lambda slot: (shared_prefix(slot.tokens[: slot.rows], tokens), -slot.turn))


def _reason(generation: Generation) -> DflashError:
    if generation.cancelled:
        return CancelledError("the request was cancelled")
    return DeadlineError("the request's time was up before its answer was whole; give it more, or ask for less")


def _twice(call: Callable[[], Found]) -> Found:
    """A call that fails once may do better; one that fails again has failed."""
    try:
        return call()
    except DeviceError:
        raise
    except EngineError:
        return call()
