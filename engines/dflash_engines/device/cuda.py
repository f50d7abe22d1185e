"""A CUDA device through NVIDIA's own Python bindings: the driver's calls, and nothing of our own between them.

Which context is current belongs to the calling thread, and other libraries change it: every call sets it anew.
"""

import ctypes
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from dflash_engines.device.cuda_check import Checker
from dflash_engines.device.device import Buffer, Event, Graph, Pinned
from dflash_engines.errors import EngineError

P = ParamSpec("P")
_NAME_LENGTH = 256


class CudaBuffer:
    """Implements `device.Buffer`."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.live_address: int | None = address
        self.nbytes = nbytes

    @property
    def address(self) -> int:
        """See `device.Buffer`."""
        if self.live_address is None:
            raise EngineError("this device memory was freed")
        return self.live_address


class CudaPinned:
    """Implements `device.Pinned`."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.array: NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class CudaEvent:
    """Implements `device.Event`."""

    def __init__(self, device: "CudaDevice", handle: driver.CUevent) -> None:
        self._device, self.handle = device, handle

    def done(self) -> bool:
        """See `device.Event`."""
        return self._device.passed(self)


class CudaGraph:
    """Implements `device.Graph`."""

    def __init__(self, executable: driver.CUgraphExec, nodes: int) -> None:
        self.executable, self.nodes = executable, nodes


class CudaDevice:
    """Implements `device.Device` on device `ordinal`."""

    def __init__(self, ordinal: int) -> None:
        self._checked = Checker()
        self._checked(driver.cuInit, 0)
        self._device = self._checked(driver.cuDeviceGet, ordinal)
        self._context = self._checked(driver.cuDevicePrimaryCtxRetain, self._device)
        model = self._do(driver.cuDeviceGetName, _NAME_LENGTH, self._device)
        self.name = f"{model.split(bytes(1))[0].decode()} (cuda:{ordinal})"
        self.ordinal = ordinal
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        self.stream = self._do(driver.cuStreamCreate, flags)
        self._events: list[CudaEvent] = []

    @property
    def lost(self) -> str | None:
        """See `device.Device`."""
        return self._checked.lost

    def lose(self, reason: str) -> None:
        """See `device.Device`."""
        self._checked.lost = self._checked.lost or reason

    def allocate(self, nbytes: int) -> Buffer:
        """See `device.Device`."""
        return CudaBuffer(int(self._do(driver.cuMemAlloc, max(nbytes, 1))), nbytes)

    def free(self, buffer: Buffer) -> None:
        """See `device.Device`."""
        assert isinstance(buffer, CudaBuffer)
        self._do(driver.cuMemFree, buffer.address)
        buffer.live_address = None

    def pin(self, nbytes: int) -> Pinned:
        """See `device.Device`."""
        return CudaPinned(int(self._do(driver.cuMemHostAlloc, max(nbytes, 1), 0)), nbytes)

    def unpin(self, pinned: Pinned) -> None:
        """See `device.Device`."""
        assert isinstance(pinned, CudaPinned)
        pinned.array = np.zeros(0, np.uint8)
        self._do(driver.cuMemFreeHost, pinned.address)

    def zero(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """See `device.Device`."""
        if nbytes:
            self._do(driver.cuMemsetD8Async, buffer.address + offset, 0, nbytes, self.stream)

    def write(self, buffer: Buffer, offset: int, values: NDArray[Any]) -> None:
        """See `device.Device`. From pageable memory: the driver has taken a copy when the call returns."""
        if values.nbytes:
            source = np.ascontiguousarray(values)
            to = buffer.address + offset
            self._do(driver.cuMemcpyHtoDAsync, to, source.ctypes.data, source.nbytes, self.stream)

    def copy(self, to: Buffer, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `device.Device`."""
        begin, end = source.address + source_offset, to.address + to_offset
        self._do(driver.cuMemcpyDtoDAsync, end, begin, nbytes, self.stream)

    def read(self, to: Pinned, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `device.Device`."""
        assert isinstance(to, CudaPinned)
        begin, end = source.address + source_offset, to.address + to_offset
        self._do(driver.cuMemcpyDtoHAsync, end, begin, nbytes, self.stream)

    def event(self) -> Event:
        """See `device.Device`."""
        event = CudaEvent(self, self._do(driver.cuEventCreate, 0))
        self._events.append(event)
        return event

    def record(self, event: Event) -> None:
        """See `device.Device`."""
        assert isinstance(event, CudaEvent)
        self._do(driver.cuEventRecord, event.handle, self.stream)

    def passed(self, event: CudaEvent) -> bool:
        """Whether the stream has come to the event's latest recording."""
        return self._checked.ready(driver.cuEventQuery, event.handle)

    def seconds(self, begin: Event, end: Event) -> float:
        """See `device.Device`."""
        assert isinstance(begin, CudaEvent) and isinstance(end, CudaEvent)
        milliseconds: float = self._do(driver.cuEventElapsedTime, begin.handle, end.handle)
        return milliseconds / 1000

    def capture(self, work: Callable[[], None]) -> Graph:
        """See `device.Device`. Calls of other threads don't spoil it."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._do(driver.cuStreamBeginCapture, self.stream, mode)
        try:
            work()
        except BaseException:  # Ctrl-C too: a stream that goes on recording does nothing else any more
            self._abandon_capture()
            raise
        graph = self._do(driver.cuStreamEndCapture, self.stream)
        _, nodes = self._do(driver.cuGraphGetNodes, graph, 0)
        executable = self._do(driver.cuGraphInstantiate, graph, 0)
        self._do(driver.cuGraphDestroy, graph)
        self._do(driver.cuGraphUpload, executable, self.stream)
        return CudaGraph(executable, int(nodes))

    def launch(self, graph: Graph) -> None:
        """See `device.Device`."""
        assert isinstance(graph, CudaGraph)
        self._do(driver.cuGraphLaunch, graph.executable, self.stream)

    def drop(self, graph: Graph) -> None:
        """See `device.Device`."""
        assert isinstance(graph, CudaGraph)
        self._do(driver.cuGraphExecDestroy, graph.executable)

    def synchronize(self) -> None:
        """See `device.Device`."""
        self._do(driver.cuStreamSynchronize, self.stream)

    def memory(self) -> tuple[int, int] | None:
        """See `device.Device`."""
        free, total = self._do(driver.cuMemGetInfo)
        return int(free), int(total)

    def close(self) -> None:
        """See `device.Device`."""
        for event in self._events:
            self._do(driver.cuEventDestroy, event.handle)
        self._events.clear()
        self._do(driver.cuStreamDestroy, self.stream)
        self._checked(driver.cuDevicePrimaryCtxRelease, self._device)

    def _do(self, function: Callable[P, tuple[Any, ...]], *arguments: P.args, **named: P.kwargs) -> Any:
        """A checked call with this device's context current."""
        self._checked(driver.cuCtxSetCurrent, self._context)
        return self._checked(function, *arguments, **named)

    def _abandon_capture(self) -> None:
        """End a capture that failed, so that the stream can be used again; what it says was to be expected."""
        _, graph = driver.cuStreamEndCapture(self.stream)
        if int(graph):
            driver.cuGraphDestroy(graph)
