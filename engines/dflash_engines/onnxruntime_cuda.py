"""ONNX Runtime on CUDA: a bundle's programs over an engine's device memory. Has not run on a GPU yet.

Sessions work in the engine's stream and record CUDA graphs of their own, one for each shape: an iteration is three
launches. Nothing may fall back to the CPU without being told.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any

import onnxruntime as ort
from onnx import TensorProto

from dflash_engines import contract
from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Dtype, Program
from dflash_engines.device.cuda import CudaDevice
from dflash_engines.device.device import DeviceArray
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.device.loading import ready_engine, settings_for
from dflash_engines.device.opening import open_cuda
from dflash_engines.device.prefill import PROFILE
from dflash_engines.device.programs import DeviceArrays, Enqueue
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import declared_programs, host_limits
from dflash_engines.lowerings.length_for_mask import length_for_mask
from dflash_engines.onnxruntime_cpu import FAILURES, WEIGHTS_FOLDER, check_weights, found_bindings, read_program

PROVIDER = "CUDAExecutionProvider"
OTHER_PROVIDERS = ("TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")  # to be probed; none has passed yet
OLDEST = (1, 24)  # with attention told by a length, whose last row is that of the last query
_NO_GRAPH = "-1"
_TYPES = {
    Dtype.INT64: TensorProto.INT64, Dtype.INT32: TensorProto.INT32, Dtype.FLOAT: TensorProto.FLOAT,
    Dtype.FLOAT16: TensorProto.FLOAT16, Dtype.BFLOAT16: TensorProto.BFLOAT16, Dtype.BOOL: TensorProto.BOOL,
}  # fmt: skip


def load(bundle: Bundle, options: Options) -> DeviceEngine:
    """The entry point `onnxruntime-cuda`. `options.provider` may name another provider, which must prove itself."""
    provider = options.provider or PROVIDER
    check_release(ort.__version__)
    check_provider(provider, ort.get_available_providers())
    limits = host_limits(bundle, options)
    device = open_cuda()
    try:
        programs = OnnxRuntimeCudaPrograms(bundle, device, declared_programs(bundle.manifest), provider)
    except BaseException:
        device.close()
        raise
    return ready_engine(bundle, device, programs, limits, settings_for(limits))


def check_release(version: str) -> None:
    """Raises EngineError for a release that is too old."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise EngineError(f"ONNX Runtime on CUDA needs release {oldest} or later, this is {version}; upgrade it")


def check_provider(provider: str, available: list[str]) -> None:
    """Raises EngineError for a provider that isn't there, or that no bundle can use."""
    if provider not in (PROVIDER, *OTHER_PROVIDERS):
        raise EngineError(f"backend 'onnxruntime-cuda' runs on {PROVIDER}, or tries {', '.join(OTHER_PROVIDERS)}")
    if provider not in available:
        raise EngineError(f"ONNX Runtime has no {provider} here, only {available}; install onnxruntime-gpu")


class OnnxRuntimeCudaPrograms:
    """Implements `DevicePrograms`, one session a program."""

    capturable = False  # by us: each session records its own

    def __init__(self, bundle: Bundle, device: CudaDevice, declared: tuple[Program, ...], provider: str) -> None:
        self._device = device
        self._graph_ids = count(1)
        self._sessions: dict[str, Any] = {p.name: _session(bundle, p, device, provider) for p in declared}

    def bind(self, program: str, profile: str, inputs: DeviceArrays, outputs: DeviceArrays) -> Enqueue:
        """See `DevicePrograms`. A decode shape is bound once, so it may be recorded."""
        session = self._sessions[program]
        binding, options = session.io_binding(), ort.RunOptions()
        graph = _NO_GRAPH if profile == PROFILE else str(next(self._graph_ids))
        options.add_run_config_entry("gpu_graph_id", graph)
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        for name, array in inputs.items():
            binding.bind_input(name, *self._place(array))
        for name, array in outputs.items():
            binding.bind_output(name, *self._place(array))

        def enqueue() -> None:
            try:
                session.run_with_iobinding(binding, options)
            except FAILURES as e:
                raise EngineError(f"ONNX Runtime failed in {program!r} ({profile}): {e}") from e

        return enqueue

    def addresses(self) -> tuple[int, ...]:
        """See `DevicePrograms`: sessions keep their own."""
        return ()

    def release(self) -> None:
        """See `DevicePrograms`."""
        self._sessions.clear()

    def _place(self, array: DeviceArray) -> tuple[str, int, int, tuple[int, ...], int]:
        return "cuda", self._device.ordinal, _TYPES[array.dtype], array.shape, array.address


def provider_options(device: CudaDevice, provider: str) -> Mapping[str, str]:
    """The engine's stream, and graphs where the provider has them."""
    shared = {"device_id": str(device.ordinal), "user_compute_stream": str(int(device.stream))}
    return shared | ({"enable_cuda_graph": "1"} if provider == PROVIDER else {})


def _session(bundle: Bundle, program: Program, device: CudaDevice, provider: str) -> Any:
    file = bundle.program(program.name)
    model = read_program(file)
    check_weights(bundle, file, model.graph.initializer)
    contract.check(program, found_bindings(model.graph.input), found_bindings(model.graph.output))
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_session_config_entry(WEIGHTS_FOLDER, str(bundle.path))
    try:
        lowered = length_for_mask(model).SerializeToString()
        providers = [(provider, dict(provider_options(device, provider)))]
        return ort.InferenceSession(lowered, options, providers=providers, enable_fallback=0)
    except FAILURES as e:
        raise EngineError(f"ONNX Runtime {ort.__version__} can't load {file} on {provider}: {e}") from e
