"""The whole engine through the calls of the CUDA driver, which a fake answers on host memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.device.programs import DeviceArrays, Enqueue
from dflash_engines.errors import CaptureError, DeviceError, EngineError
from dflash_engines.host_engine import host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from tests.engines.device.fake_driver import FakeDriver, view
from tests.engines.device.on_host import pair, settings
from tests.engines.scripted_bundle import BLOCK_SIZE
from tests.engines.scripted_pair import plain_tokens

real = pytest.importorskip("cuda.bindings.driver", reason="needs the optional package cuda-bindings")
PROMPT = [5, 6, 7]
ILLEGAL_ADDRESS = 700


class AddressPrograms:
    """ONNX Runtime over memory that is known by its addresses alone, in the fake driver's stream."""

    capturable = True

    def __init__(self, driver: FakeDriver, bundle: Bundle) -> None:
        self.driver, self.programs = driver, OnnxRuntimePrograms(bundle, Options(threads=1))
        self.scratch = 1
        self.released = False

    def bind(self, program: str, profile: str, inputs: DeviceArrays, outputs: DeviceArrays) -> Enqueue:
        views = ({name: view(array) for name, array in arrays.items()} for arrays in (inputs, outputs))
        run = self.programs.bind(program, *views)
        return lambda: self.driver.enqueue(run)

    def addresses(self) -> tuple[int, ...]:
        return (self.scratch,)

    def release(self) -> None:
        self.released = True


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver()
    monkeypatch.setattr("dflash_engines.device.cuda.driver", driver)
    return driver


def cuda_engine(bundle: Bundle, driver: FakeDriver, **changed: Any) -> DeviceEngine:
    from dflash_engines.device.cuda import CudaDevice

    limits = host_limits(bundle, Options(slots=2))
    programs = AddressPrograms(driver, bundle)
    return DeviceEngine(pair(bundle), CudaDevice(0), programs, limits, settings(2, **changed))


@pytest.fixture
def engine(bundle: Bundle, driver: FakeDriver) -> Iterator[DeviceEngine]:
    engine = cuda_engine(bundle, driver, patience=0.2)
    yield engine
    driver.fail.clear()
    engine.close()


def generated(engine: DeviceEngine, slot: int, iterations: int) -> list[int]:
    tokens = [int(engine.finish_prefill(slot, PROMPT, 0).sampled[0, 0])]
    engine.place(slot, tokens[0], len(PROMPT), engine.limits.max_len)
    for _ in range(iterations):
        while engine.can_launch:
            engine.launch(BLOCK_SIZE)
        found = engine.collect()
        tokens += found.sampled[slot, : found.accepted[slot] + 1].tolist()
    engine.park(slot)
    return tokens


def test_iterations_are_replayed_graphs_and_their_tokens_are_the_targets(engine: DeviceEngine) -> None:
    tokens = generated(engine, 0, 5)
    assert tokens == plain_tokens(PROMPT, len(tokens))
    assert (engine.counts.captures, engine.counts.replays, engine.counts.launches_without_graph) == (1, 6, 0)
    assert engine.health is None


def test_everything_is_given_back(bundle: Bundle, driver: FakeDriver) -> None:
    """Twenty loads leave what one leaves: nothing."""
    for _ in range(20):
        engine = cuda_engine(bundle, driver)
        generated(engine, 1, 2)
        engine.close()
        engine.close()  # again is fine
        assert not (driver.live or driver.allocated or driver.pinned)
        assert engine.programs.released  # type: ignore[attr-defined]


def test_a_load_that_fails_gives_everything_back(bundle: Bundle, driver: FakeDriver) -> None:
    driver.total = 10_000
    for _ in range(20):
        with pytest.raises(EngineError, match=r"need 0\.\d MB, Fake GPU \(cuda:0\) has 0\.\d of 0\.\d MB free"):
            cuda_engine(bundle, driver)
    driver.total, driver.fail["cuMemHostAlloc"] = 1 << 30, 2
    with pytest.raises(EngineError, match="no memory left"):
        cuda_engine(bundle, driver)
    assert not (driver.live or driver.allocated)


def test_a_sticky_error_ends_the_engine_at_once(engine: DeviceEngine, driver: FakeDriver) -> None:
    generated(engine, 0, 1)
    driver.fail["cuGraphLaunch"] = ILLEGAL_ADDRESS
    engine.place(0, 5, 3, engine.limits.max_len)
    with pytest.raises(DeviceError, match="cuGraphLaunch: 700"):
        engine.launch(BLOCK_SIZE)
    assert engine.health is not None and "restart it" in engine.health
    driver.fail.clear()
    with pytest.raises(DeviceError, match="can't use the device any more"):
        engine.launch(BLOCK_SIZE)


def test_a_device_that_hangs_is_given_up(engine: DeviceEngine, driver: FakeDriver) -> None:
    generated(engine, 0, 1)
    engine.place(0, 5, 3, engine.limits.max_len)
    engine.launch(BLOCK_SIZE)
    driver.hang = True
    with pytest.raises(DeviceError, match=r"did not finish launched work within 0\.2 s"):
        engine.collect()
    assert engine.health is not None


def test_a_capture_that_is_refused_falls_back_to_plain_runs(
    engine: DeviceEngine, driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.fail["cuStreamEndCapture"] = 901
    tokens = generated(engine, 0, 3)
    assert tokens == plain_tokens(PROMPT, len(tokens))
    assert (engine.counts.replays, engine.counts.launches_without_graph) == (0, 4)
    assert "CUDA refused to record" in engine.counts.reason
    assert len(caplog.records) == 1


def test_an_empty_graph_is_never_replayed(bundle: Bundle, driver: FakeDriver) -> None:
    """What is enqueued on another device or stream isn't recorded."""
    engine = cuda_engine(bundle, driver)
    graph_nodes = driver.cuGraphGetNodes
    driver.cuGraphGetNodes = lambda graph, numNodes=0: (*graph_nodes(graph)[:2], 0)  # type: ignore[method-assign]  # noqa: N803
    tokens = generated(engine, 0, 3)
    assert tokens == plain_tokens(PROMPT, len(tokens))
    assert "nothing was recorded" in engine.counts.reason
    engine.close()
    assert not driver.live


def test_a_graph_is_not_replayed_once_memory_has_moved(engine: DeviceEngine) -> None:
    generated(engine, 0, 1)
    engine.programs.scratch = 2  # type: ignore[attr-defined]
    engine.place(0, 5, 3, engine.limits.max_len)
    with pytest.raises(EngineError, match="memory that has moved"):
        engine.launch(BLOCK_SIZE)


def test_another_librarys_current_context_does_not_matter(engine: DeviceEngine, driver: FakeDriver) -> None:
    driver.current = 7
    tokens = generated(engine, 0, 2)
    driver.current = None
    assert tokens == plain_tokens(PROMPT, len(tokens))
    assert engine.finish_prefill(1, PROMPT, 0).finite[0]


@pytest.mark.parametrize(("status", "kind"), [(1, EngineError), (900, CaptureError), (719, DeviceError)])
def test_every_status_is_an_error_of_its_kind(
    engine: DeviceEngine, driver: FakeDriver, status: int, kind: type
) -> None:
    driver.fail["cuMemcpyHtoDAsync"] = status
    with pytest.raises(kind, match="cuMemcpyHtoDAsync"):
        engine.prefill(0, PROMPT, 0)


def test_the_bindings_have_every_function_with_as_many_arguments() -> None:
    for name in (name for name in dir(FakeDriver) if name.startswith("cu")):
        signature = getattr(real, name).__doc__.split(")")[0]
        wanted = getattr(FakeDriver, name).__code__.co_argcount - 1
        given = signature.count(",") + (not signature.endswith("("))
        assert given == wanted, signature


def test_memory_that_was_freed_is_an_error(driver: FakeDriver) -> None:
    from dflash_engines.device.cuda import CudaDevice

    device = CudaDevice(0)
    buffer = device.allocate(64)
    device.free(buffer)
    with pytest.raises(EngineError, match="freed"):
        device.write(buffer, 0, np.zeros(1))


def test_a_machine_without_a_driver_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_engines.device import opening

    def no_library(ordinal: int) -> None:
        raise RuntimeError("libcuda was not found")

    monkeypatch.setattr("dflash_engines.device.cuda.CudaDevice", no_library)
    with pytest.raises(EngineError, match="no NVIDIA driver on this machine"):
        opening.open_cuda()
