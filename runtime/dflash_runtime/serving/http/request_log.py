"""One line of JSON for every response, with the request's id, and without a word of its prompt or answer."""

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash_runtime.serving.http.errors import CLIENT_CLOSED
from dflash_runtime.serving.http.metrics import Metrics
from dflash_runtime.serving.http.telemetry import Span, span
from dflash_runtime.serving.streams import AsyncAnswerStream

log = logging.getLogger("dflash.server")
HEADER = "x-request-id"
_ID = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_KNOWN_PATHS = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/ready", "/metrics", "/"}
_QUIET_PATHS = {"/health", "/ready", "/metrics"}


class RequestLog:
    """Gives each request an id (its own, if it has a decent one), and tells logs, metrics and traces how it went."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = Headers(scope=scope).get(HEADER, "")
        request_id = own if _ID.fullmatch(own) else f"req-{secrets.token_hex(12)}"
        status = CLIENT_CLOSED  # unless a response begins

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        begin, state = monotonic(), scope.setdefault("state", {})
        path = scope["path"] if scope["path"] in _KNOWN_PATHS else "other"
        with span(scope["method"], path, Headers(scope=scope)) as traced:
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                facts = {"status": status} | _facts(state.get("streams", ()))
                self._tell(traced, path, {"request_id": request_id, "method": scope["method"], "path": path} | facts,
                           monotonic() - begin)  # fmt: skip

    def _tell(self, traced: Span, path: str, facts: Mapping[str, Any], seconds: float) -> None:
        self._metrics.http.labels(path, facts["status"]).inc()
        traced.end(facts)
        level = logging.DEBUG if path in _QUIET_PATHS else logging.INFO
        log.log(level, "request", extra={**facts, "seconds": round(seconds, 4)})


def _facts(streams: Sequence[AsyncAnswerStream]) -> dict[str, Any]:
    """Numbers about the answers of one request."""
    answers = [stream.generation.answer for stream in streams]
    if not answers:
        return {}
    steps = [step for answer in answers for step in answer.steps]
    gains = [step.acceptance_length for step in steps if step.acceptance_length is not None]
    return {
        "prompt_tokens": len(answers[0].request.tokens),
        "completion_tokens": sum(len(step.token_ids) for step in steps),
        "finish_reasons": [answer.steps[-1].finish_reason if answer.steps else None for answer in answers],
        "acceptance_length": round(sum(gains) / len(gains), 3) if gains else None,
    }


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        fields = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower(),
                  "logger": record.name, "message": record.getMessage()}  # fmt: skip
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}
