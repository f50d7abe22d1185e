"""Every error in OpenAI's form: {"error": {"message", "type", "param", "code"}}. Nothing of a prompt is repeated."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from dflash_engines.errors import DflashError, RequestError
from dflash_runtime.serving.errors import CancelledError, ClosedError, DeadlineError, QueueFullError

INVALID, SERVER = "invalid_request_error", "server_error"
CLIENT_CLOSED = 499  # nobody reads it, but the log does
ErrorBody = dict[str, dict[str, str | None]]


class ApiError(Exception):
    """An error that has its status; raised by endpoints."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    @property
    def body(self) -> ErrorBody:
        """As it is sent."""
        return error_body(str(self), INVALID if self.status < 500 else SERVER, code=self.code, param=self.param)


def error_body(message: str, kind: str, *, code: str | None = None, param: str | None = None) -> ErrorBody:
    """OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def status_of(fault: DflashError) -> int:
    """The HTTP status that says what kind of error it is."""
    statuses = {RequestError: 400, QueueFullError: 429, CancelledError: CLIENT_CLOSED, ClosedError: 503,
                DeadlineError: 504}  # fmt: skip
    return next((status for kind, status in statuses.items() if isinstance(fault, kind)), 500)


_CODES = {429: "queue_full", 503: "unavailable", 504: "timeout"}


def fault_body(fault: DflashError) -> ErrorBody:
    """The body for an error of the library."""
    status = status_of(fault)
    kind = "rate_limit_error" if status == 429 else INVALID if status < 500 else SERVER
    return error_body(str(fault), kind, code=_CODES.get(status))


def headers_of(fault: DflashError) -> dict[str, str]:
    """When to come again."""
    if isinstance(fault, QueueFullError):
        return {"retry-after": str(math.ceil(fault.retry_after))}
    return {"retry-after": "5"} if isinstance(fault, ClosedError) else {}


def add_handlers(app: FastAPI) -> None:
    """Let `app` answer every error in this form."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(DflashError, _fault)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


async def _api_error(request: Request, fault: Exception) -> JSONResponse:
    assert isinstance(fault, ApiError)
    return JSONResponse(fault.body, fault.status)


async def _fault(request: Request, fault: Exception) -> JSONResponse:
    assert isinstance(fault, DflashError)
    return JSONResponse(fault_body(fault), status_of(fault), headers_of(fault))


async def _invalid(request: Request, fault: Exception) -> JSONResponse:
    assert isinstance(fault, RequestValidationError)
    message, param, code = describe(fault.errors())
    return JSONResponse(error_body(message, INVALID, code=code, param=param), 400)


async def _http_error(request: Request, fault: Exception) -> JSONResponse:
    assert isinstance(fault, HTTPException)
    message = fault.detail
    if fault.status_code in (404, 405):
        message = f"{fault.detail}: {request.method} {request.url.path}"
    kind = INVALID if fault.status_code < 500 else SERVER
    return JSONResponse(error_body(message, kind), fault.status_code, fault.headers)


async def _unexpected(request: Request, fault: Exception) -> JSONResponse:
    """The trace is for the log, which gets it from the server."""
    return JSONResponse(error_body("the server met a fault of its own; its log has more", SERVER), 500)


def describe(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None, str | None]:
    """Message, parameter and code for the first of pydantic's errors, none of whose inputs is shown."""
    first = min(errors, key=_rank)
    where = [part for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}", None, None
    param = _path(where) or None
    if first["type"] == "extra_forbidden":
        return f"{param!r} is not supported by this server; leave it out", param, "unsupported_parameter"
    return f"{param or 'the body'}: {first['msg']}", param, None


def _rank(error: Mapping[str, Any]) -> int:
    """An unknown field goes first; of a union's members, the one of the right type tells most."""
    return 0 if error["type"] == "extra_forbidden" else 2 if error["type"].endswith("_type") else 1


def _path(where: Sequence[str | int]) -> str:
    """messages[0].content, without pydantic's names for the members of a union."""
    path = ""
    for place, part in enumerate(where):
        if isinstance(part, int):
            path += f"[{part}]"
        elif not place:
            path = part[:_LONGEST_NAME]
        elif part.isidentifier() and part not in _UNION_MEMBERS:
            path += f".{part[:_LONGEST_NAME]}"
    return path


_LONGEST_NAME = 100
_UNION_MEMBERS = {"str", "int", "float", "bool", "system", "developer", "user", "assistant", "tool", "NamedTool"}
