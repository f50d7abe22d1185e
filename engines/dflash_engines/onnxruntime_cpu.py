"""ONNX Runtime on the CPU: a bundle's programs over host memory, caches updated in place.

Programs are loaded without their weights, checked, lowered, and handed to ONNX Runtime as bytes; it maps
the bundle's weight file itself, so that a program may be larger than protobuf's 2 GB.
"""

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.external_data_helper import uses_external_data
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from dflash_engines import contract, golden
from dflash_engines.backend import Buffers, Options, Run
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Dtype, Found, Program
from dflash_engines.engine import Engine
from dflash_engines.errors import BundleError, EngineError
from dflash_engines.host_engine import HostEngine, declared_programs, host_limits
from dflash_engines.lowerings.live_length import live_length
from dflash_engines.proofs import Proof, Setting, processor, prove
from dflash_engines.whole_number import whole_number

PROVIDER = "CPUExecutionProvider"
_SELDOM_USED = "draft_noise"  # loaded when it is first bound, as it holds the drafter's weights once more
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
# ONNX Runtime's exceptions have no base class of their own; a run over bound arrays raises a plain RuntimeError.
FAILURES = (
    RuntimeError,
    ort_errors.EPFail,
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)


def load(bundle: Bundle, options: Options) -> Engine:
    """Load `bundle`; the entry point `onnxruntime`. Raises EngineError, BundleError or ContractError."""
    if bundle.manifest.geometry.cache_dtype is Dtype.BFLOAT16:
        raise EngineError(
            f"{bundle.path} is bf16, which ONNX Runtime doesn't multiply on the CPU; "
            "export the pair with --precision fp32, fp16, int8 or int4"
        )
    limits = host_limits(bundle, options)
    programs = OnnxRuntimePrograms(bundle, options)
    if bundle.has(golden.FILE):
        setting = Setting(bundle=bundle, backend="onnxruntime", version=ort.__version__, device=processor())
        prove(setting, lambda: _run_golden(bundle, programs))
    return HostEngine(bundle, programs, limits)


def _run_golden(bundle: Bundle, programs: "OnnxRuntimePrograms") -> Proof:
    """Once on each machine, over caches of their own."""
    begin, declared = perf_counter(), declared_programs(bundle.manifest)
    runner = golden.Runner(programs, declared, bundle.manifest.limits)
    largest = golden.check(golden.Golden.load(bundle.file(golden.FILE)), runner)
    return Proof(largest_deviation=largest, seconds=perf_counter() - begin)


class OnnxRuntimePrograms:
    """Implements `backend.Programs`, one session a program."""

    def __init__(self, bundle: Bundle, options: Options) -> None:
        _check_provider(options.provider or PROVIDER)
        settings = _session_options(bundle, options.threads)
        programs = {program.name: program for program in declared_programs(bundle.manifest)}
        self._session = cache(lambda name: _session(bundle, programs[name], settings))
        for name in programs.keys() - {_SELDOM_USED}:
            self._session(name)

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        """See `backend.Programs.bind`."""
        session = self._session(program)
        binding = session.io_binding()
        # An OrtValue shares the array's memory. A cache's two ends are at one address, and so it isn't copied.
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
        return _Run(program, session, binding, (*inputs.values(), *outputs.values()))


_Arrays = tuple[NDArray[Any], ...]


class _Run:
    """A program bound to its arrays, which it keeps alive."""

    def __init__(self, program: str, session: ort.InferenceSession, binding: ort.IOBinding, arrays: _Arrays) -> None:
        self._program, self._session, self._binding, self._arrays = program, session, binding, arrays

    def __call__(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
        except FAILURES as e:
            raise EngineError(f"ONNX Runtime failed in {self._program!r}: {e}") from e


def _check_provider(provider: str) -> None:
    available = ort.get_available_providers()
    if provider not in available:
        raise EngineError(f"ONNX Runtime has no {provider} here, only {available}; install the build that has it")
    if provider != PROVIDER:
        raise EngineError(f"backend 'onnxruntime' runs on {PROVIDER}, not on {provider}")


def _session_options(bundle: Bundle, threads: int | None) -> ort.SessionOptions:
    """Sessions with pools of their own: a process-wide one would bind every other user of ONNX Runtime in it.

    Workers that went on spinning after a run would take the cores from the next program's; they stop at its end.
    """
    count = len(os.sched_getaffinity(0)) if threads is None else whole_number(threads)
    if count is None or not 1 <= count < 2**31:
        raise EngineError(f"threads must be a whole number of at least 1, not {threads!r}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = count
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry(WEIGHTS_FOLDER, str(bundle.path))
    return options


def _session(bundle: Bundle, program: Program, options: ort.SessionOptions) -> ort.InferenceSession:
    file = bundle.program(program.name)
    model = read_program(file)
    check_weights(bundle, file, model.graph.initializer)
    contract.check(program, found_bindings(model.graph.input), found_bindings(model.graph.output))
    try:
        lowered: ModelProto = live_length(model)
        return _create(lowered.SerializeToString(), options)
    except FAILURES as e:
        raise EngineError(f"ONNX Runtime {ort.__version__} can't load {file}: {e}") from e


def read_program(file: Path) -> ModelProto:
    """The program without its weights. Raises BundleError."""
    try:
        return onnx.load(file, load_external_data=False)
    except DecodeError as e:
        raise BundleError(f"{file} is not an ONNX program ({e}); export the pair again") from e


def _create(model: bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(model, options, providers=[PROVIDER], enable_fallback=0)
    except RuntimeError as e:
        if "global thread pool" not in str(e):
            raise
    # The application made one pool for all sessions of its process.
    options.use_per_session_threads, options.intra_op_num_threads = False, 0
    return ort.InferenceSession(model, options, providers=[PROVIDER], enable_fallback=0)


def check_weights(bundle: Bundle, file: Path, initializers: Iterable[TensorProto]) -> None:
    """Only files that the bundle lists, and so has verified, may hold weights. Raises BundleError."""
    for tensor in initializers:
        if uses_external_data(tensor):
            location = next(entry.value for entry in tensor.external_data if entry.key == "location")
            if not bundle.has(location):
                raise BundleError(
                    f"{file}: {tensor.name!r} lies in {location!r}, which the bundle doesn't list; "
                    "export the pair again"
                )


def found_bindings(values: Iterable[ValueInfoProto]) -> dict[str, Found]:
    """One side of a program, to be held to the contract."""
    return {value.name: Found(dtype=_dtype(value), shape=_shape(value)) for value in values}


def _dtype(value: ValueInfoProto) -> str:
    name: str = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    return {"FLOAT": "float32"}.get(name, name.lower())


def _shape(value: ValueInfoProto) -> tuple[str | int, ...]:
    return tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
