"""What the server tells those who watch over it: health, readiness, metrics, logs, traces."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dflash_engines.errors import BundleError
from dflash_runtime.serving import ConcurrentDecoder
from dflash_runtime.serving.http.metrics import Metrics
from dflash_runtime.serving.http.request_log import JsonLines
from dflash_runtime.serving.http.service import Service
from dflash_runtime.serving.http.settings import Settings
from tests.runtime.serving.http.conftest import Running, running, say, serving, until
from tests.runtime.serving.http.parrot import parrot_engine

CHAT = "/v1/chat/completions"


def test_it_is_ready_when_the_model_is_loaded_and_not_before(parrot_folder: Path) -> None:
    loaded = Event()

    def load(metrics: Metrics) -> ConcurrentDecoder:
        assert loaded.wait(30)
        return ConcurrentDecoder(parrot_engine(parrot_folder), observer=metrics)

    service = Service(load, Settings(model="parrot"))
    with serving(service) as url, httpx2.Client(base_url=url, trust_env=False) as http:
        assert (http.get("/health").status_code, http.get("/ready").status_code) == (200, 503)
        early = http.post(CHAT, json={"model": "parrot", "messages": say("hi")})
        assert (early.status_code, early.json()["error"]["code"]) == (503, "unavailable")
        assert int(early.headers["retry-after"]) > 0
        loaded.set()
        until(lambda: http.get("/ready").status_code == 200)
        assert http.get("/ready").json() == {"status": "ready"}
        assert http.post(CHAT, json={"model": "parrot", "messages": say("hi")}).status_code == 200
        service.close()
        assert (http.get("/health").status_code, http.get("/ready").status_code) == (200, 503)
        assert http.post(CHAT, json={"model": "parrot", "messages": say("hi")}).status_code == 503


def test_it_is_not_healthy_when_its_engine_thread_has_died(
    parrot_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.excepthook", lambda args: None)

    def fault() -> None:
        raise ZeroDivisionError

    with running(parrot_folder) as server:
        server.parrot.pace = fault
        assert server.say("hi").status_code == 503
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/ready").json() == {"status": "stopped"}


def test_a_model_that_cannot_be_loaded_is_reported() -> None:
    faults: list[BaseException] = []

    def load(metrics: Metrics) -> ConcurrentDecoder:
        raise BundleError("half of the bundle is missing")

    import asyncio

    from dflash_runtime.serving.http.app import create_app

    app = create_app(Service(load, Settings(model="parrot")), faults.append)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            while not faults:
                await asyncio.sleep(0.01)

    asyncio.run(start())
    assert [str(fault) for fault in faults] == ["half of the bundle is missing"]


def values(server: Running) -> dict[str, float]:
    lines = server.http.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_metrics_count_what_happened(server: Running) -> None:
    before = values(server)
    server.say("hello " * 10, block_size=6)
    server.say("hello " * 10, block_size=6, stream=True)
    server.say("x" * 100, max_tokens=3)
    server.say("x", timeout=-1)
    after = values(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["dflash_generated_tokens_total"] == 61 + 61 + 3
    assert grown['dflash_requests_total{outcome="stop"}'] == 2
    assert grown['dflash_requests_total{outcome="length"}'] == 1
    assert grown["dflash_time_to_first_token_seconds_count"] == 3
    assert grown["dflash_queue_seconds_count"] == 3
    assert grown["dflash_step_gap_seconds_count"] == grown["dflash_verifying_passes_total"] > 20
    assert 0 < grown["dflash_accepted_tokens_total"] < grown["dflash_drafted_tokens_total"]
    assert grown["dflash_reused_prompt_tokens_total"] >= 60
    assert grown[f'dflash_http_requests_total{{path="{CHAT}",status="200"}}'] == 3
    assert grown[f'dflash_http_requests_total{{path="{CHAT}",status="400"}}'] == 1
    assert (after["dflash_slots"], after["dflash_slots_busy"], after["dflash_queue_length"]) == (4, 0, 0)
    assert after["process_resident_memory_bytes"] > 1e6
    assert 1 < after["dflash_acceptance_length"] < 6


def test_paths_of_strangers_do_not_fill_the_metrics(server: Running) -> None:
    for i in range(5):
        server.http.get(f"/secret/{i}")
    assert not [name for name in values(server) if "secret" in name]


def test_a_fall_of_acceptance_raises_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(acceptance_alarm=1.5)
    caplog.set_level(logging.INFO, logger="dflash.server")

    def alarm() -> float | None:
        return metrics.registry.get_sample_value("dflash_acceptance_alarm")

    for _ in range(100):
        metrics._accept(4)
    assert alarm() == 0
    for _ in range(1000):
        metrics._accept(1)
    assert alarm() == 1
    for _ in range(1000):
        metrics._accept(4)
    assert alarm() == 0
    assert [record.message for record in caplog.records] == ["acceptance has fallen", "acceptance has recovered"]


def test_the_first_passes_are_no_fall() -> None:
    metrics = Metrics(acceptance_alarm=1.5)
    for _ in range(20):
        metrics._accept(1)
    assert metrics.registry.get_sample_value("dflash_acceptance_alarm") == 0


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the server's log holds, as it is written."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Lines(level=logging.DEBUG)
    handler.setFormatter(JsonLines())
    caplog.set_level(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    yield lines
    logging.getLogger().removeHandler(handler)


def test_logs_tell_how_it_went_and_not_what_was_said(server: Running, log_lines: list[str]) -> None:
    secret = "correct horse battery staple"
    bodies: list[dict[str, Any]] = [{}, {"temperature": 9}, {"stream": True}, {"messages": [{"role": secret}]}]
    for i, fields in enumerate(bodies):
        body = {"model": "parrot", "messages": say(secret), **fields}
        server.http.post(CHAT, json=body, headers={"x-request-id": f"mine-{i}"})
    until(lambda: all(any(f'"mine-{i}"' in line for line in log_lines) for i in range(4)))
    assert not any("horse" in line for line in log_lines)
    told = [json.loads(line) for line in log_lines if '"mine-' in line]
    assert [(line["request_id"], line["status"]) for line in told] == [
        ("mine-0", 200), ("mine-1", 400), ("mine-2", 200), ("mine-3", 400)
    ]  # fmt: skip
    assert told[0]["completion_tokens"] == told[2]["completion_tokens"] == len(secret) + 1
    assert told[0]["finish_reasons"] == ["stop"]
    assert told[0]["seconds"] >= 0


@pytest.mark.parametrize(("sent", "kept"), [("abc-123_x", True), ("a b", False), ("x" * 200, False), ("é", False)])
def test_request_ids(server: Running, sent: str, kept: bool) -> None:
    response = server.http.get("/health", headers={b"x-request-id": sent.encode()})
    found = response.headers["x-request-id"]
    assert found == sent if kept else re.fullmatch(r"req-[0-9a-f]{24}", found)


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    """The provider is the process's: it can be set only once."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def test_a_span_goes_on_with_the_callers_trace(server: Running, spans: InMemorySpanExporter) -> None:
    spans.clear()
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body: dict[str, Any] = {"model": "parrot", "messages": say("hi")}
    server.http.post(CHAT, json=body, headers={"traceparent": caller})
    until(lambda: f"dflash POST {CHAT}" in [span.name for span in spans.get_finished_spans()])
    span = next(span for span in spans.get_finished_spans() if span.name == f"dflash POST {CHAT}")
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" in caller
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.output_tokens"] == 3
    assert span.attributes["http.response.status_code"] == 200
