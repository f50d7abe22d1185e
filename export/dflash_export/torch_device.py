"""A device through PyTorch: memory, stream, events and CUDA graphs are its own, so that its modules can be recorded.

On the CPU the same class runs everything at once and a graph runs its work again: for rehearsals and tests.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash_engines.contract import Dtype
from dflash_engines.device.cuda_check import CAPTURE, STICKY
from dflash_engines.device.device import Buffer, DeviceArray, Event, Graph, Pinned
from dflash_engines.errors import CaptureError, DeviceError, EngineError

DTYPES = {
    Dtype.INT64: torch.int64, Dtype.INT32: torch.int32, Dtype.FLOAT: torch.float32, Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16, Dtype.BOOL: torch.bool,
}  # fmt: skip
_EMPTY_GRAPH = "The CUDA Graph is empty"


class TorchBuffer:
    """Implements `device.Buffer`."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._bytes: Tensor | None = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.nbytes = nbytes

    @property
    def bytes(self) -> Tensor:
        """Its contents. Raises EngineError once it was freed."""
        if self._bytes is None:
            raise EngineError("this device memory was freed")
        return self._bytes

    @property
    def address(self) -> int:
        """See `device.Buffer`."""
        return self.bytes.data_ptr()

    def free(self) -> None:
        """Back to PyTorch's allocator, which keeps it for the next one."""
        self._bytes = None


class TorchPinned:
    """Implements `device.Pinned`."""

    def __init__(self, nbytes: int, pin: bool) -> None:
        self.tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pin)
        self.array: NDArray[np.uint8] = self.tensor.numpy()


class CudaEvent:
    """Implements `device.Event`."""

    def __init__(self, device: "TorchDevice") -> None:
        self._device = device
        self.event = torch.cuda.Event(enable_timing=True)

    def done(self) -> bool:
        """See `device.Event`."""
        with self._device.translated():
            return bool(self.event.query())


class CpuEvent:
    """Implements `device.Event`: work on the CPU is done when the call returns."""

    time = 0.0

    def done(self) -> bool:
        """See `device.Event`."""
        return True


class CudaGraph:
    """Implements `device.Graph`. PyTorch doesn't tell its nodes, but warns of an empty one."""

    nodes = None

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self.graph = graph


class CpuGraph:
    """Implements `device.Graph`: the work, to be done again."""

    nodes = None

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work


class TorchDevice:
    """Implements `device.Device` on "cuda", "cuda:1" or "cpu"."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.lost: str | None = None
        self.on_gpu = self.device.type == "cuda"
        self.name = torch.cuda.get_device_name(self.device) if self.on_gpu else "PyTorch on the CPU"
        self.stream = torch.cuda.Stream(self.device) if self.on_gpu else None
        self._pool: Any = torch.cuda.graph_pool_handle() if self.on_gpu else None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """PyTorch's errors as ours; work inside goes to this device's stream."""
        if self.lost is not None:
            raise DeviceError(self.lost)
        try:
            if self.stream is None:
                yield
            else:
                with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                    yield
        except torch.OutOfMemoryError as e:
            raise EngineError(f"{self.name} has no memory left ({e}); ask for a smaller max_len or fewer slots") from e
        except RuntimeError as e:
            raise self._translation(e) from e

    def lose(self, reason: str) -> None:
        """See `device.Device`."""
        self.lost = self.lost or reason

    def tensor(self, array: DeviceArray) -> Tensor:
        """The array's memory."""
        piece = _torch(array.buffer).bytes[array.offset : array.offset + array.nbytes]
        return piece.view(DTYPES[array.dtype]).view(array.shape)

    def allocate(self, nbytes: int) -> Buffer:
        """See `device.Device`."""
        with self.translated():
            return TorchBuffer(nbytes, self.device)

    def free(self, buffer: Buffer) -> None:
        """See `device.Device`."""
        _torch(buffer).free()

    def pin(self, nbytes: int) -> Pinned:
        """See `device.Device`."""
        with self.translated():
            return TorchPinned(nbytes, pin=self.on_gpu)

    def unpin(self, pinned: Pinned) -> None:
        """See `device.Device`. It goes when the last reference does."""

    def zero(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """See `device.Device`."""
        with self.translated():
            _torch(buffer).bytes[offset : offset + nbytes].zero_()

    def write(self, buffer: Buffer, offset: int, values: NDArray[Any]) -> None:
        """See `device.Device`."""
        source = torch.from_numpy(np.frombuffer(values.tobytes(), np.uint8).copy())
        with self.translated():
            _torch(buffer).bytes[offset : offset + len(source)].copy_(source)

    def copy(self, to: Buffer, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `device.Device`."""
        with self.translated():
            piece = _torch(source).bytes[source_offset : source_offset + nbytes]
            _torch(to).bytes[to_offset : to_offset + nbytes].copy_(piece)

    def read(self, to: Pinned, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `device.Device`."""
        assert isinstance(to, TorchPinned)
        with self.translated():
            piece = _torch(source).bytes[source_offset : source_offset + nbytes]
            to.tensor[to_offset : to_offset + nbytes].copy_(piece, non_blocking=True)

    def event(self) -> Event:
        """See `device.Device`."""
        return CudaEvent(self) if self.on_gpu else CpuEvent()

    def record(self, event: Event) -> None:
        """See `device.Device`."""
        if isinstance(event, CudaEvent):
            with self.translated():
                event.event.record(cast("torch.cuda.Stream", self.stream))
        else:
            cast("CpuEvent", event).time = perf_counter()

    def seconds(self, begin: Event, end: Event) -> float:
        """See `device.Device`."""
        if isinstance(begin, CudaEvent) and isinstance(end, CudaEvent):
            with self.translated():
                return float(begin.event.elapsed_time(end.event)) / 1000
        return cast("CpuEvent", end).time - cast("CpuEvent", begin).time

    def capture(self, work: Callable[[], None]) -> Graph:
        """See `device.Device`. Graphs share a pool: none leaves anything in it for later."""
        if not self.on_gpu:
            return CpuGraph(work)
        graph = torch.cuda.CUDAGraph()
        with self.translated(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
                work()
        if any(_EMPTY_GRAPH in str(warning.message) for warning in told):
            raise CaptureError("nothing was recorded: the programs run on another device or stream")
        return CudaGraph(graph)

    def launch(self, graph: Graph) -> None:
        """See `device.Device`."""
        if isinstance(graph, CudaGraph):
            with self.translated():
                graph.graph.replay()
        else:
            cast("CpuGraph", graph).work()

    def drop(self, graph: Graph) -> None:
        """See `device.Device`."""
        if isinstance(graph, CudaGraph):
            graph.graph.reset()

    def synchronize(self) -> None:
        """See `device.Device`."""
        if self.stream is not None:
            with self.translated():
                self.stream.synchronize()

    def memory(self) -> tuple[int, int] | None:
        """See `device.Device`. What PyTorch keeps for itself without using it is free to us."""
        if not self.on_gpu:
            return None
        free, total = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept, total

    def close(self) -> None:
        """See `device.Device`."""
        if self.on_gpu:
            torch.cuda.empty_cache()

    def _translation(self, fault: RuntimeError) -> EngineError:
        code = getattr(fault, "error_code", 0)  # of torch.AcceleratorError alone
        if code in STICKY:
            self.lose(f"PyTorch met a CUDA error ({fault}); this process can't use the device any more: restart it")
            return DeviceError(self.lost)
        refused = code in CAPTURE or "captur" in str(fault)
        return (CaptureError if refused else EngineError)(f"PyTorch failed on {self.name}: {fault}")


def _torch(buffer: Buffer) -> TorchBuffer:
    assert isinstance(buffer, TorchBuffer)
    return buffer
