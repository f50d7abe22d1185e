"""Server-sent events: sent as they come, ended by an error event after an error, stopped when the reader leaves."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dflash_engines.errors import DflashError
from dflash_runtime.completion import Step
from dflash_runtime.serving.errors import CancelledError
from dflash_runtime.serving.http.errors import fault_body
from dflash_runtime.serving.streams import AsyncAnswerStream

Event = Mapping[str, Any]  # goes out as JSON
Events = AsyncGenerator[Event, None]
T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


async def respond(request: Request, events: Events) -> "EventStream":
    """A response, once the first event is there: what fails before it still gets a status of its own."""
    try:
        first = await until_gone(request.receive, _first(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events)


class EventStream(Response):
    """Sends events, and then [DONE]. However it ends, `events` is closed."""

    media_type = "text/event-stream"

    def __init__(self, first: Event, events: Events) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first, self._events = first, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await until_gone(receive, self._send_all(send))
        except CancelledError:
            pass  # nobody reads any more
        finally:
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        last = DONE
        try:
            await send(_message(_line(self._first)))
            async for event in self._events:
                await send(_message(_line(event)))
        except DflashError as fault:
            last = _line(fault_body(fault))
        await send(_message(last) | {"more_body": False})


def _message(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _line(event: Event) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


async def _first(events: Events) -> Event:
    return await anext(events)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises CancelledError then."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise CancelledError("the client has left")
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.wait((working, gone))
        if not working.cancelled():
            working.exception()  # seen; it doesn't matter any more


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def steps_of(streams: Sequence[AsyncAnswerStream]) -> AsyncGenerator[tuple[int, Step], None]:
    """The steps of several answers as they come, each with its answer's number. An error of one ends all."""
    waiting = {asyncio.ensure_future(_next(stream)): i for i, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: waiting[task]):
                index, step = waiting.pop(task), task.result()
                if step is not None:
                    yield index, step
                    waiting[asyncio.ensure_future(_next(streams[index]))] = index
    finally:
        for stream in streams:
            stream.cancel()
        for task in waiting:
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()  # seen: one error ends all


async def _next(stream: AsyncAnswerStream) -> Step | None:
    return await anext(stream, None)
