"""An answer as its reader sees it: steps as they come, for a thread or for an event loop.

Both may be dropped at any point; the request is cancelled then.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from typing import Self
from weakref import finalize

from dflash_engines.errors import DflashError
from dflash_runtime.answer import Answer
from dflash_runtime.completion import Completion, Step
from dflash_runtime.serving.generation import WHENEVER, Event, Generation, Urgency


class AnswerStream:
    """Iterate for the steps; `completion` is the whole answer after the last. Raises the DflashError that ended it."""

    def __init__(self, answer: Answer, urgency: Urgency = WHENEVER) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self.completion: Completion | None = None
        self.generation = Generation(answer=answer, deliver=self._events.put, urgency=urgency)
        finalize(self, self.generation.cancel)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Step:
        if self.completion is not None:
            raise StopIteration
        event = self._events.get()
        if isinstance(event, Step):
            return event
        if isinstance(event, DflashError):
            self._events.put(event)  # whoever asks again is told again
            raise event
        self.completion = event
        raise StopIteration

    def finish(self) -> Completion:
        """Wait for the whole answer."""
        for _ in self:
            pass
        assert self.completion is not None
        return self.completion

    def cancel(self) -> None:
        """Nobody reads any more; its slot is free at the next iteration. After the end, nothing happens."""
        self.generation.cancel()


class AsyncAnswerStream:
    """As AnswerStream, for `async for`. Steps that come in a burst are kept until they are read."""

    def __init__(self, answer: Answer, urgency: Urgency = WHENEVER) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.completion: Completion | None = None
        deliver = _into(asyncio.get_running_loop(), self._events)
        self.generation = Generation(answer=answer, deliver=deliver, urgency=urgency)
        finalize(self, self.generation.cancel)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        if self.completion is not None:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, Step):
            return event
        if isinstance(event, DflashError):
            self._events.put_nowait(event)
            raise event
        self.completion = event
        raise StopAsyncIteration

    async def finish(self) -> Completion:
        """Wait for the whole answer; when the waiting is cancelled, so is the request."""
        try:
            async for _ in self:
                pass
        finally:
            self.cancel()
        assert self.completion is not None
        return self.completion

    def cancel(self) -> None:
        """As AnswerStream's."""
        self.generation.cancel()


def _into(loop: asyncio.AbstractEventLoop, events: "asyncio.Queue[Event]") -> Callable[[Event], None]:
    """Hand an event over from another thread."""

    def deliver(event: Event) -> None:
        try:
            loop.call_soon_threadsafe(events.put_nowait, event)
        except RuntimeError:  # the loop was closed, and so nobody waits
            if not loop.is_closed():
                raise

    return deliver
