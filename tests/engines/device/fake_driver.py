"""`cuda.bindings.driver` on host memory: what engines call of it, with the statuses and the strictness of the real one.

Work is done at once, except between the begin and the end of a capture. It has addresses, so that arithmetic on them
is real, and it counts what is live, so that what isn't given back shows.
"""

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.arena import array_dtype
from dflash_engines.device.device import DeviceArray

Work = Callable[[], None]


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


OK, INVALID, NO_MEMORY = CUresult.CUDA_SUCCESS, CUresult.CUDA_ERROR_INVALID_VALUE, CUresult.CUDA_ERROR_OUT_OF_MEMORY


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


class CUstream_flags(IntEnum):
    CU_STREAM_NON_BLOCKING = 1


def memory(address: int, size: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def view(array: DeviceArray) -> NDArray[Any]:
    """The array, found by its address alone."""
    return memory(array.address, array.nbytes).view(array_dtype(array.dtype)).reshape(array.shape)


class FakeDriver:
    """Stands for the module."""

    CUresult = CUresult
    CUstreamCaptureMode = CUstreamCaptureMode
    CUstream_flags = CUstream_flags

    def __init__(self, total: int = 1 << 30) -> None:
        self.total = total
        self.allocated: dict[int, NDArray[np.uint8]] = {}
        self.pinned: dict[int, NDArray[np.uint8]] = {}
        self.live: set[tuple[str, int]] = set()  # streams, events, graphs
        self.graphs: dict[int, list[Work]] = {}
        self.recorded: list[Work] | None = None
        self.current: int | None = None
        self.fail: dict[str, int] = {}  # function to the status that it gives from now on
        self.hang = False  # events never pass
        self._handles = 0

    def status(self, function: str) -> int:
        if function in self.fail:
            return self.fail[function]
        return OK if self.current == 1 else CUresult.CUDA_ERROR_INVALID_CONTEXT

    def new(self, kind: str) -> int:
        self._handles += 1
        self.live.add((kind, self._handles))
        return self._handles

    def enqueue(self, work: Work) -> None:
        if self.recorded is None:
            work()
        else:
            self.recorded.append(work)

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (self.fail.get("cuInit", OK),)

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return OK, ordinal

    def cuDeviceGetName(self, length: int, dev: int) -> tuple[Any, ...]:
        return OK, b"Fake GPU" + bytes(length - 8)

    def cuDevicePrimaryCtxRetain(self, dev: int) -> tuple[Any, ...]:
        self.live.add(("context", dev))
        return OK, 1

    def cuDevicePrimaryCtxRelease(self, dev: int) -> tuple[Any, ...]:
        self.live.remove(("context", dev))
        return (OK,)

    def cuCtxSetCurrent(self, context: int) -> tuple[Any, ...]:
        self.current = context
        return (OK,)

    def cuMemGetInfo(self) -> tuple[Any, ...]:
        used = sum(len(piece) for piece in self.allocated.values())
        return self.status("cuMemGetInfo"), self.total - used, self.total

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        if self.recorded is not None:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 0
        if size > self.total:
            return NO_MEMORY, 0
        piece = np.full(size + 256, 0xFF, np.uint8)
        address = -(-piece.ctypes.data // 256) * 256
        self.allocated[address] = piece
        return self.status("cuMemAlloc"), address

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        return (OK if self.allocated.pop(address, None) is not None else INVALID,)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        piece = np.full(size, 0xFF, np.uint8)
        self.pinned[piece.ctypes.data] = piece
        return self.status("cuMemHostAlloc"), piece.ctypes.data

    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:
        return (OK if self.pinned.pop(address, None) is not None else INVALID,)

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> tuple[Any, ...]:
        self.enqueue(lambda: memory(address, size).fill(value))
        return (self.status("cuMemsetD8Async"),)

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        if self.recorded is not None:
            return (CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        return self._copy("cuMemcpyHtoDAsync", to, source, size)

    def cuMemcpyDtoDAsync(self, to: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._copy("cuMemcpyDtoDAsync", to, source, size)

    def cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._copy("cuMemcpyDtoHAsync", to, source, size)

    def _copy(self, function: str, to: int, source: int, size: int) -> tuple[Any, ...]:
        def work() -> None:
            memory(to, size)[:] = memory(source, size)

        self.enqueue(work)
        return (self.status(function),)

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        return self.status("cuStreamCreate"), self.new("stream")

    def cuStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        self.live.remove(("stream", stream))
        return (OK,)

    def cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        if self.recorded is not None:
            return (CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        return (self.status("cuStreamSynchronize"),)

    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[Any, ...]:
        self.recorded = []
        return (self.status("cuStreamBeginCapture"),)

    def cuStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        work, self.recorded = self.recorded, None
        graph = self.new("graph")
        self.graphs[graph] = work or []
        return self.status("cuStreamEndCapture"), graph

    def cuGraphGetNodes(self, graph: int, numNodes: int = 0) -> tuple[Any, ...]:
        return OK, [], len(self.graphs[graph])

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, ...]:
        executable = self.new("executable")
        self.graphs[executable] = self.graphs[graph]
        return self.status("cuGraphInstantiate"), executable

    def cuGraphUpload(self, executable: int, stream: int) -> tuple[Any, ...]:
        return (self.status("cuGraphUpload"),)

    def cuGraphLaunch(self, executable: int, stream: int) -> tuple[Any, ...]:
        status = self.status("cuGraphLaunch")
        if status == OK:
            for work in self.graphs[executable]:
                work()
        return (status,)

    def cuGraphDestroy(self, graph: int) -> tuple[Any, ...]:
        self.live.remove(("graph", graph))
        return (OK,)

    def cuGraphExecDestroy(self, executable: int) -> tuple[Any, ...]:
        self.live.remove(("executable", executable))
        return (OK,)

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        return self.status("cuEventCreate"), self.new("event")

    def cuEventDestroy(self, event: int) -> tuple[Any, ...]:
        self.live.remove(("event", event))
        return (OK,)

    def cuEventRecord(self, event: int, stream: int) -> tuple[Any, ...]:
        return (self.status("cuEventRecord"),)

    def cuEventQuery(self, event: int) -> tuple[Any, ...]:
        return (CUresult.CUDA_ERROR_NOT_READY if self.hang else self.status("cuEventQuery"),)

    def cuEventElapsedTime(self, begin: int, end: int) -> tuple[Any, ...]:
        return self.status("cuEventElapsedTime"), 1.0
