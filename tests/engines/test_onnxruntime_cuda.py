"""ONNX Runtime on CUDA as far as it goes without a GPU: what a session is asked for, and what is refused."""

from typing import Any

import numpy as np
import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.contract import Dtype
from dflash_engines.device.device import DeviceArray
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import declared_programs

pytest.importorskip("cuda.bindings.driver", reason="needs the optional package cuda-bindings")
from dflash_engines import onnxruntime_cuda


class Session:
    """Stands for InferenceSession; tells what it was made with and bound to."""

    made: list["Session"]

    def __init__(self, model: bytes, options: Any, providers: Any, enable_fallback: int) -> None:
        self.providers, self.fallback, self.options = providers, enable_fallback, options
        self.bound: dict[str, tuple[Any, ...]] = {}
        self.runs: list[Any] = []
        self.made.append(self)

    def io_binding(self) -> "Session":
        return self

    def bind_input(self, name: str, *place: Any) -> None:
        self.bound[name] = place

    bind_output = bind_input

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.runs.append(options)


class Placed:
    """Memory of which only the address matters."""

    def __init__(self, address: int) -> None:
        self.address, self.nbytes = address, 1 << 20


class FakeDevice:
    ordinal, stream = 1, np.int64(77)


@pytest.fixture
def programs(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> onnxruntime_cuda.OnnxRuntimeCudaPrograms:
    Session.made = []
    monkeypatch.setattr("dflash_engines.onnxruntime_cuda.ort.InferenceSession", Session)
    declared = declared_programs(bundle.manifest)
    device: Any = FakeDevice()
    return onnxruntime_cuda.OnnxRuntimeCudaPrograms(bundle, device, declared, onnxruntime_cuda.PROVIDER)


def arrays(**shapes: tuple[int, ...]) -> dict[str, DeviceArray]:
    return {
        name: DeviceArray(buffer=Placed(4096), offset=256 * i, shape=shape, dtype=Dtype.INT64)
        for i, (name, shape) in enumerate(shapes.items())
    }


def test_sessions_work_in_the_engines_stream_and_never_on_the_cpu(
    programs: onnxruntime_cuda.OnnxRuntimeCudaPrograms,
) -> None:
    session = Session.made[0]
    ((name, options),) = session.providers
    assert (name, session.fallback) == ("CUDAExecutionProvider", 0)
    assert options == {"device_id": "1", "user_compute_stream": "77", "enable_cuda_graph": "1"}
    assert session.options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"


def test_device_memory_is_bound_by_address(programs: onnxruntime_cuda.OnnxRuntimeCudaPrograms) -> None:
    run = programs.bind("target", "block_6", arrays(tokens=(2, 6), start=(2,)), arrays(logits=(2, 6)))
    run()
    session = Session.made[0]
    assert session.bound["start"] == ("cuda", 1, 7, (2,), 4096 + 256)
    assert len(session.runs) == 1


def test_each_decode_shape_has_a_graph_and_prefill_none(programs: onnxruntime_cuda.OnnxRuntimeCudaPrograms) -> None:
    for profile in ("block_6", "prefill", "block_2"):
        programs.bind("target", profile, arrays(tokens=(1, 6)), arrays(logits=(1, 6)))()
    ids = [options.get_run_config_entry("gpu_graph_id") for options in Session.made[0].runs]
    assert ids == ["1", "-1", "2"]


def test_an_old_release_is_refused() -> None:
    with pytest.raises(EngineError, match=r"needs release 1\.24 or later, this is 1\.23\.2"):
        onnxruntime_cuda.check_release("1.23.2")
    onnxruntime_cuda.check_release("1.32.0")


@pytest.mark.parametrize(
    ("provider", "message"),
    [("CPUExecutionProvider", "runs on CUDAExecutionProvider"), ("CUDAExecutionProvider", "install onnxruntime-gpu")],
)
def test_a_provider_that_is_not_there_is_never_replaced(provider: str, message: str) -> None:
    """Asked for CUDA on a machine without it, nothing runs on the CPU instead."""
    with pytest.raises(EngineError, match=message):
        onnxruntime_cuda.check_provider(provider, ["CPUExecutionProvider"])
