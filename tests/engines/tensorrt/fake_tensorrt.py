"""What the runtime asks of `tensorrt_rtx`, answered by ONNX Runtime on the CPU through addresses alone.

A plan is a program's name. Contexts are as forgetful and as strict as the documentation says: shapes and addresses by
name, no run before all are set, false instead of an exception.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

from dflash_engines.backend import Programs
from dflash_engines.contract import Dim, Limits, Program, profiles
from dflash_engines.device.device import DeviceArray
from tests.engines.device.fake_driver import FakeDriver, view

TYPES = {"int64": "INT64", "int32": "INT32", "float32": "FLOAT", "float16": "HALF", "bool": "BOOL"}


class Mode(Enum):
    INPUT = 1
    OUTPUT = 2


class Severity(IntEnum):
    ERROR = 1
    WARNING = 2


class Logger:
    ERROR, WARNING = Severity.ERROR, Severity.WARNING

    def log(self, severity: Severity, message: str) -> None:
        """Overridden."""


class FakeCache:
    version = b"kernels of version 1"

    def __init__(self) -> None:
        self.content = b""

    def deserialize(self, content: bytes) -> bool:
        if content == self.version:
            self.content = content
        return content == self.version

    def serialize(self) -> bytes:
        return self.version


class FakeConfig:
    """Of TensorRT-RTX."""

    cuda_graph_strategy: Any = None
    dynamic_shapes_kernel_specialization_strategy: Any = None
    allocation: Any = None
    cache: Any = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self.allocation = strategy

    def create_runtime_cache(self) -> FakeCache:
        return FakeCache()

    def set_runtime_cache(self, cache: FakeCache) -> bool:
        self.cache = cache
        return True


class FakeContext:
    def __init__(self, engine: "FakeEngine", config: FakeConfig) -> None:
        self.engine, self.config = engine, config
        self.profile = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.scratch: tuple[int, int] | None = None
        self.sets = 0

    def set_device_memory(self, address: int, size: int) -> None:
        self.scratch = (address, size)

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = index
        return index < self.engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
        fits = all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))
        if fits:
            self.shapes[name] = shape
        return fits

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.sets += 1
        self.addresses[name] = address
        return True

    def infer_shapes(self) -> list[str]:
        return [b.name for b in self.engine.program.inputs if b.name not in self.shapes]

    def is_stream_capturable(self, stream: int) -> bool:
        return self.engine.world.capturable

    def execute_async_v3(self, stream: int) -> bool:
        world, program = self.engine.world, self.engine.program
        if world.refuses == program.name:
            world.log.log(Severity.ERROR, "out of resources")
            return False
        sizes = {dim: size for b in program.inputs for dim, size in zip(b.shape, self.shapes[b.name], strict=True)}
        sides = ({b.name: self._view(b, sizes) for b in side} for side in (program.inputs, program.outputs))
        world.driver.enqueue(world.programs.bind(program.name, *sides))
        return True

    def _view(self, binding: Any, sizes: Mapping[Any, int]) -> Any:
        shape = tuple(sizes[dim] if isinstance(dim, Dim) else dim for dim in binding.shape)

        class Placed:
            address = self.addresses[binding.name]

        return view(DeviceArray(buffer=Placed(), offset=0, shape=shape, dtype=binding.dtype))  # type: ignore[arg-type]


class FakeEngine:
    def __init__(self, world: "FakeTensorRt", program: Program) -> None:
        self.world, self.program = world, program
        self.tensors = [*program.inputs, *program.outputs]
        self.profiles = profiles(program, world.limits)
        self.contexts: list[FakeContext] = []

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def get_tensor_name(self, index: int) -> str:
        return self.tensors[index].name

    def _tensor(self, name: str) -> Any:
        return next(b for b in self.tensors if b.name == name)

    def get_tensor_mode(self, name: str) -> Mode:
        return Mode.INPUT if name in {b.name for b in self.program.inputs} else Mode.OUTPUT

    def get_tensor_dtype(self, name: str) -> str:
        return "DataType." + TYPES[self._tensor(name).dtype]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self._tensor(name).updates or None

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        ranges, shape = self.profiles[index].ranges, self._tensor(name).shape
        return [
            tuple(getattr(ranges[d], end) if isinstance(d, Dim) else d for d in shape)
            for end in ("low", "usual", "high")
        ]

    def get_device_memory_size_for_profile_v2(self, index: int) -> int:
        return 1000 * (index + 1)

    def create_runtime_config(self) -> FakeConfig:
        return FakeConfig()

    def create_execution_context(self, config: FakeConfig) -> FakeContext:
        self.contexts.append(FakeContext(self, config))
        return self.contexts[-1]


class FakeTensorRt:
    """Stands for the module."""

    __name__ = "tensorrt_rtx"
    ILogger = Logger
    TensorIOMode = Mode
    ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED="user managed")
    CudaGraphStrategy = SimpleNamespace(DISABLED="disabled")
    DynamicShapesKernelSpecializationStrategy = SimpleNamespace(EAGER="eager")

    def __init__(self, driver: FakeDriver, programs: Programs, declared: tuple[Program, ...], limits: Limits) -> None:
        self.driver, self.programs, self.limits = driver, programs, limits
        self.engines = {program.name.encode(): FakeEngine(self, program) for program in declared}
        self.capturable, self.refuses = True, ""
        self.log = Logger()

    def Runtime(self, log: Logger) -> Any:
        self.log = log

        def deserialize(plan: bytes) -> FakeEngine | None:
            if plan not in self.engines:
                log.log(Severity.ERROR, "magic tag does not match")
            return self.engines.get(plan)

        return SimpleNamespace(deserialize_cuda_engine=deserialize)
