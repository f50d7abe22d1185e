"""Engines of TensorRT or TensorRT-RTX on a CUDA device: contexts, bindings, scratch memory and what is checked of them.

One context for each program and profile. All contexts work in one piece of scratch memory, as they run one after
another in one stream. Decode contexts are bound once; the prefill context goes from slot to slot.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from dflash_engines.contract import Binding, Limits, Profile, Program, profiles
from dflash_engines.device.cuda import CudaDevice
from dflash_engines.device.device import DeviceArray
from dflash_engines.device.layout import ALIGNMENT, is_cache
from dflash_engines.device.programs import DeviceArrays, Enqueue
from dflash_engines.errors import EngineError
from dflash_engines.tensorrt.log import kept_log
from dflash_engines.tensorrt.runtime_cache import RuntimeCaches

AGAIN = "build it again with dflash-export build"


class TensorRtPrograms:
    """Implements `DevicePrograms`. `plans` holds a serialised engine for each declared program."""

    def __init__(
        self,
        trt: ModuleType,
        device: CudaDevice,
        declared: Iterable[Program],
        plans: Mapping[str, bytes],
        limits: Limits,
        caches: Path | None,
    ) -> None:
        self._trt, self._device, self._limits = trt, device, limits
        self._log = kept_log(trt)
        self._runtime = trt.Runtime(self._log)
        self._caches = RuntimeCaches(caches)
        self._declared = {program.name: program for program in declared}
        self._engines = {name: self._load(program, plans[name]) for name, program in self._declared.items()}
        self._profiles = {name: profiles(program, limits) for name, program in self._declared.items()}
        for name, program in self._declared.items():
            check_engine(self._engines[name], program, self._profiles[name], trt)
        self._contexts: dict[tuple[str, str], Context] = {}
        self._scratch = device.allocate(max(map(self._scratch_bytes, self._declared)))

    @property
    def capturable(self) -> bool:
        """Whether every context that was made can be recorded; TensorRT has no say, TensorRT-RTX has."""
        return all(context.capturable(int(self._device.stream)) for context in self._contexts.values())

    def bind(self, program: str, profile: str, inputs: DeviceArrays, outputs: DeviceArrays) -> Enqueue:
        """See `DevicePrograms`."""
        if (program, profile) not in self._contexts:
            self._contexts[program, profile] = self._new_context(program, profile)
        context, stream = self._contexts[program, profile], int(self._device.stream)
        check_alignment(program, {**inputs, **outputs})
        context.apply(inputs, outputs)

        def enqueue() -> None:
            context.apply(inputs, outputs)
            if not context.handle.execute_async_v3(stream):
                raise EngineError(f"TensorRT did not start {program!r} ({profile}): {self._told()}")

        return enqueue

    def addresses(self) -> tuple[int, ...]:
        """See `DevicePrograms`: the scratch memory."""
        return (self._scratch.address,)

    def release(self) -> None:
        """See `DevicePrograms`. Contexts before their engines, engines before the runtime."""
        self._caches.save()
        self._contexts.clear()
        self._engines.clear()
        self._runtime = None
        self._device.free(self._scratch)

    def save_caches(self) -> None:
        """Keep the kernels that were compiled, for the next load."""
        self._caches.save()

    def _load(self, program: Program, plan: bytes) -> Any:
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise EngineError(
                f"{self._trt.__name__} can't read the engine of {program.name!r}: {self._told()}; {AGAIN}"
            )
        return engine

    def _scratch_bytes(self, program: str) -> int:
        engine = self._engines[program]
        sizes = [engine.get_device_memory_size_for_profile_v2(i) for i in range(engine.num_optimization_profiles)]
        return int(max(sizes))

    def _new_context(self, program: str, profile: str) -> "Context":
        engine = self._engines[program]
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        self._settle_kernels(program, config)
        handle = engine.create_execution_context(config)
        if handle is None:
            raise EngineError(f"{self._trt.__name__} made no context for {program!r} ({profile}): {self._told()}")
        handle.set_device_memory(self._scratch.address, self._scratch.nbytes)
        index = [p.name for p in self._profiles[program]].index(profile)
        if not handle.set_optimization_profile_async(index, int(self._device.stream)):
            raise EngineError(f"{program!r} has no profile {profile!r} ({index}): {self._told()}; {AGAIN}")
        self._device.synchronize()
        return Context(program, profile, handle)

    def _settle_kernels(self, program: str, config: Any) -> None:
        """TensorRT-RTX compiles kernels on the device. All at once, or a graph would hold the slow ones for ever."""
        if not hasattr(config, "create_runtime_cache"):
            return
        config.cuda_graph_strategy = self._trt.CudaGraphStrategy.DISABLED  # ours hold more than one engine
        eager = self._trt.DynamicShapesKernelSpecializationStrategy.EAGER
        config.dynamic_shapes_kernel_specialization_strategy = eager
        self._caches.attach(program, config)

    def _told(self) -> str:
        told: str = self._log.told()
        return told


class Context:
    """An execution context and what it is bound to."""

    def __init__(self, program: str, profile: str, handle: Any) -> None:
        self.program, self.profile, self.handle = program, profile, handle
        self._bound: tuple[DeviceArrays, DeviceArrays] | None = None

    def apply(self, inputs: DeviceArrays, outputs: DeviceArrays) -> None:
        """Bind, unless these arrays are bound. Raises EngineError for what the profile doesn't allow."""
        if self._bound is not None and self._bound[0] is inputs and self._bound[1] is outputs:
            return
        self._bound = None
        for name, array in inputs.items():
            if not self.handle.set_input_shape(name, array.shape):
                raise EngineError(f"{self.program!r} ({self.profile}) refuses {name} of {list(array.shape)}; {AGAIN}")
        for name, array in {**inputs, **outputs}.items():
            if not self.handle.set_tensor_address(name, array.address):
                raise EngineError(f"{self.program!r} ({self.profile}) refuses the memory of {name}")
        if missing := self.handle.infer_shapes():
            raise EngineError(f"{self.program!r} ({self.profile}) is not told all of {sorted(missing)}")
        self._bound = (inputs, outputs)

    def capturable(self, stream: int) -> bool:
        """Whether a graph can hold its work."""
        ask = getattr(self.handle, "is_stream_capturable", None)
        return True if ask is None else bool(ask(stream))


def check_alignment(program: str, arrays: Mapping[str, DeviceArray]) -> None:
    """TensorRT asks every address to be a multiple of 256."""
    for name, array in arrays.items():
        if array.address % ALIGNMENT:
            raise EngineError(
                f"{program!r}: {name} lies at an address that is no multiple of {ALIGNMENT}: a slot's cache has "
                f"{array.nbytes} bytes; choose a max_len that is a multiple of 16"
            )


def check_engine(engine: Any, program: Program, wanted: Iterable[Profile], trt: ModuleType) -> None:
    """Hold an engine to the contract: names, types, sides, caches updated in place, profiles.

    Raises EngineError naming the first difference.
    """
    names = {engine.get_tensor_name(i) for i in range(engine.num_io_tensors)}
    for side, bindings in ((trt.TensorIOMode.INPUT, program.inputs), (trt.TensorIOMode.OUTPUT, program.outputs)):
        for binding in bindings:
            _check_tensor(engine, program.name, binding, side, names, trt)
    declared = {b.name for b in (*program.inputs, *program.outputs)}
    if extra := sorted(names - declared):
        raise EngineError(f"the engine of {program.name!r} has a tensor {extra[0]!r} that is not declared; {AGAIN}")
    for index, profile in enumerate(wanted):
        _check_profile(engine, program, index, profile)


def _check_tensor(engine: Any, program: str, binding: Binding, side: Any, names: set[str], trt: ModuleType) -> None:
    where = f"the engine of {program!r}"
    if binding.name not in names:
        raise EngineError(f"{where} has no tensor {binding.name!r}; {AGAIN}")
    if engine.get_tensor_mode(binding.name) != side:
        raise EngineError(f"{where} has {binding.name!r} on the wrong side; {AGAIN}")
    found = str(engine.get_tensor_dtype(binding.name)).rsplit(".", 1)[-1]
    expected = {"int64": "INT64", "int32": "INT32", "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16",
                "bool": "BOOL"}[binding.dtype]  # fmt: skip
    if found != expected:
        raise EngineError(f"{where} has {binding.name!r} as {found}, not {expected}; {AGAIN}")
    if binding.updates and engine.get_aliased_input_tensor(binding.name) != binding.updates:
        raise EngineError(f"{where} does not write {binding.name!r} over {binding.updates!r}; {AGAIN}")


def _check_profile(engine: Any, program: Program, index: int, profile: Profile) -> None:
    """Compare the ranges of an input's dynamic sizes; a profile that is missing is a difference too."""
    where = f"the engine of {program.name!r}: profile {profile.name!r} ({index})"
    if index >= engine.num_optimization_profiles:
        raise EngineError(f"{where} is missing; {AGAIN}")
    for binding in program.inputs:
        if is_cache(binding):
            continue
        ranges = [profile.ranges.get(dim) if isinstance(dim, str) else None for dim in binding.shape]
        found = [tuple(shape) for shape in engine.get_tensor_profile_shape(binding.name, index)]
        for axis, allowed in enumerate(ranges):
            if allowed and [shape[axis] for shape in found] != [allowed.low, allowed.usual, allowed.high]:
                raise EngineError(
                    f"{where} allows {[shape[axis] for shape in found]} (least, usual, most) for axis {axis} of "
                    f"{binding.name!r}, not {[allowed.low, allowed.usual, allowed.high]}; {AGAIN}"
                )
