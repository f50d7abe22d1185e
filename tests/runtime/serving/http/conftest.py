"""A server on loopback, in a thread, before a parrot."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import sleep
from typing import Any

import httpx2
import pytest
import uvicorn
from openai import OpenAI

from dflash_engines.backend import Options
from dflash_runtime.decoder import Decoder
from dflash_runtime.serving import ConcurrentDecoder
from dflash_runtime.serving.http.loading import load
from dflash_runtime.serving.http.metrics import Metrics
from dflash_runtime.serving.http.server import listen, uvicorn_config
from dflash_runtime.serving.http.service import Service
from dflash_runtime.serving.http.settings import Settings
from tests.models.tiny_bundle import tiny_bundle
from tests.runtime.serving.http.parrot import Parrot, parrot_engine, write_parrot

PLAIN = (
    "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)


@dataclass(kw_only=True)
class Running:
    """A server, and ways to talk to it."""

    service: Service
    url: str
    parrot: Parrot
    http: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx2.Client(base_url=self.url, timeout=30, trust_env=False)

    def client(self, **options: Any) -> OpenAI:
        given: dict[str, Any] = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 30}
        return OpenAI(**(given | options), http_client=self.http)

    def post(self, path: str = "/v1/chat/completions", **fields: Any) -> httpx2.Response:
        return self.http.post(path, json={"model": "parrot", **fields})

    def say(self, text: str, **fields: Any) -> httpx2.Response:
        return self.post(messages=say(text), **fields)

    @property
    def idle(self) -> bool:
        return self.service.decoder.queue.running == 0 and len(self.service.decoder.queue) == 0


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": f"<say>{text}</say>"}]


@contextmanager
def running(folder: Path, *, slots: int = 4, queue_size: int = 64, **settings: Any) -> Iterator[Running]:
    engine = parrot_engine(folder, slots)
    assert isinstance(engine.programs, Parrot)

    def load(metrics: Metrics) -> ConcurrentDecoder:
        return ConcurrentDecoder(engine, queue_size=queue_size, observer=metrics)

    service = Service(load, replace(Settings(model="parrot", drain_timeout=5.0), **settings))
    with serving(service) as url:
        until(lambda: service.state == "ready")
        server = Running(service=service, url=url, parrot=engine.programs)
        yield server
        server.http.close()


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """The address of a server in a thread."""
    listening = listen("127.0.0.1", 0, service.settings.stall_timeout)
    faults: list[BaseException] = []
    server = uvicorn.Server(uvicorn_config(service, faults.append))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()
    assert not faults


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; a test that waits in vain fails."""
    for _ in range(1500):
        if holds():
            return
        sleep(0.01)
    pytest.fail("it never came to hold")


@pytest.fixture(scope="session")
def parrot_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parrot(tmp_path_factory.mktemp("parrot"), PLAIN)


@pytest.fixture(scope="module")
def shared(parrot_folder: Path) -> Iterator[Running]:
    """One server for all tests of a module."""
    with running(parrot_folder) as server:
        yield server


@pytest.fixture
def server(shared: Running) -> Iterator[Running]:
    """The module's server; idle before and after, and at full speed."""
    shared.parrot.pace = lambda: None
    yield shared
    shared.parrot.pace = lambda: None
    until(lambda: shared.idle)


@pytest.fixture
def slow(server: Running) -> Running:
    """Passes take their time, so that a test can act in the midst of an answer."""
    server.parrot.pace = lambda: sleep(0.02)
    return server


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    return tiny_bundle("fp32").path


@pytest.fixture(scope="session")
def tiny_decoder(tiny_folder: Path) -> Decoder:
    return Decoder.load(tiny_folder, threads=1)


@pytest.fixture(scope="session")
def tiny_url(tiny_folder: Path) -> Iterator[str]:
    def loaded(metrics: Metrics) -> ConcurrentDecoder:
        options = Options(slots=4, threads=1)
        return load(metrics, path=tiny_folder, backend="onnxruntime", options=options, queue_size=256, target_gap=0.2)

    service = Service(loaded, Settings(model="tiny"))
    with serving(service) as url:
        until(lambda: service.state == "ready")
        yield url
