from collections.abc import Iterator
from time import sleep

import pytest

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_runtime.serving import ConcurrentDecoder

SLOTS = 3


@pytest.fixture(scope="session")
def engine(bundle: Bundle) -> HostEngine:
    """Of three slots; what a test leaves in its caches must not matter to the next one."""
    options = Options(slots=SLOTS, threads=1)
    return HostEngine(bundle, OnnxRuntimePrograms(bundle, options), host_limits(bundle, options))


@pytest.fixture
def decoder(engine: HostEngine) -> Iterator[ConcurrentDecoder]:
    with ConcurrentDecoder(engine, queue_size=32) as decoder:
        yield decoder


@pytest.fixture
def slow(engine: HostEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations that take their time, so that a test can act in the midst of an answer."""
    launch = engine.launch

    def slowly(block_size: int) -> None:
        sleep(0.01)
        launch(block_size)

    monkeypatch.setattr(engine, "launch", slowly)
