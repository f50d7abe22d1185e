"""What stands before the endpoints: keys, and limits on bodies. Plain ASGI, so that streams pass untouched."""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash_runtime.serving.http.errors import INVALID, error_body

_PROTECTED = "/v1/"


class ApiKeys:
    """Lets requests of /v1 pass that have one of the keys as their bearer token."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "http" and scope["path"].startswith(_PROTECTED) and not self._known(Headers(scope=scope)):
            body = error_body("the API key is missing or wrong", INVALID, code="invalid_api_key")
            await JSONResponse(body, 401, {"www-authenticate": "Bearer"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _known(self, headers: Headers) -> bool:
        """Compared in a time that tells nothing, with each of the keys. Headers are bytes, told as Latin-1."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        found = [secrets.compare_digest(_digest(key.strip().encode("latin-1")), digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(found)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class BodyLimit:
    """Reads a request's body, up to a size and in a time, before anything else is done with it."""

    def __init__(self, app: ASGIApp, largest: int, timeout: float) -> None:
        self._app, self._largest, self._timeout = app, largest, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout):
                messages = await self._read(scope, receive)
        except TimeoutError:
            await _refuse(408, f"the body did not arrive within {self._timeout:g} s")(scope, receive, send)
            return
        if messages is None:
            await _refuse(413, f"the body is larger than {self._largest} bytes")(scope, receive, send)
            return
        await self._app(scope, _replay(messages, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> list[Message] | None:
        """The body's messages; None when it is too large."""
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._largest:
            return None
        messages, size = list[Message](), 0
        while not messages or messages[-1].get("more_body", False):
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            if size > self._largest:
                return None
        return messages


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse(error_body(message, INVALID), status, {"connection": "close"})


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """What was read already, and then what comes: that the client leaves."""
    waiting = iter(messages)

    async def replay() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return replay
