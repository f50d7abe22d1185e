"""Requests made at random from our own OpenAPI: whatever they are, the answer is one that the API knows."""

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode

from tests.runtime.serving.http.conftest import Running, until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
KNOWN = {200, 400, 401, 404, 405, 408, 411, 413, 415, 429, 431}


def fuzz(server: Running, path: str, examples: int) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operation = schema[path]["POST"]

    def send(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body = bounded(case.body)
        response = case.call(base_url=server.url, timeout=60)
        assert response.status_code in KNOWN, (response.status_code, case.body)
        if response.status_code != 200:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        run = settings(
            max_examples=examples, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        test: Callable[[], None] = run(_given(operation.as_strategy(generation_mode=mode), send))
        test()
    until(lambda: server.idle)
    assert server.say("still here").json()["choices"][0]["message"]["content"] == "still here"


def _given(strategy: Any, send: Callable[[Any], None]) -> Any:
    @given(strategy)
    def test(case: Any) -> None:
        send(case)

    return test


def bounded(body: dict[str, Any]) -> dict[str, Any]:
    """The right model more often than chance would have it, and few tokens."""
    known = {"model": "parrot"} if isinstance(body.get("model"), str) else {}
    small = {"max_tokens": 3} if isinstance(body.get("max_tokens"), int | None) else {}
    return body | known | small


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_few_at_random(server: Running, path: str) -> None:
    fuzz(server, path, 8)


@pytest.mark.slow
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_many_at_random(server: Running, path: str) -> None:
    fuzz(server, path, 2000)
