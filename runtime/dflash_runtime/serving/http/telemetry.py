"""Spans of OpenTelemetry, where its API is installed; what exports them is the process's own affair."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

try:
    from opentelemetry import propagate, trace
except ModuleNotFoundError:
    INSTALLED = False
else:
    INSTALLED = True

_ATTRIBUTES = {
    "request_id": "http.request.header.x-request-id",
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "acceptance_length": "dflash.acceptance_length",
}


class Span(Protocol):
    """One request."""

    def end(self, facts: Mapping[str, Any]) -> None:
        """Tell how it went."""
        ...


class _NoSpan:
    def end(self, facts: Mapping[str, Any]) -> None:
        pass


class _OpenTelemetrySpan:
    def __init__(self, span: "trace.Span") -> None:
        self._span = span

    def end(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            if name in _ATTRIBUTES and value is not None:
                self._span.set_attribute(_ATTRIBUTES[name], _attribute(value))
        if facts["status"] >= 500:
            self._span.set_status(trace.StatusCode.ERROR)


def _attribute(value: Any) -> Any:
    return [str(item) for item in value] if isinstance(value, list) else value


@contextmanager
def span(method: str, path: str, headers: Mapping[str, str]) -> Iterator[Span]:
    """A span that continues the caller's trace; those of FastAPI itself, where it makes some, are inside."""
    if not INSTALLED:
        yield _NoSpan()
        return
    tracer = trace.get_tracer("dflash.server")
    context = propagate.extract(headers)
    with tracer.start_as_current_span(f"dflash {method} {path}", context) as opened:
        yield _OpenTelemetrySpan(opened)
