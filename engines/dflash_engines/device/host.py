"""A device in host memory: work waits in a queue until somebody looks whether it is done, as late as a stream may.

It is as strict as CUDA where that is cheap to be: fresh memory holds junk, freed memory is unusable, and waiting or
allocating during a capture is refused. Engines that are tested on it have no CUDA calls left to get wrong but CUDA's.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.arena import array_dtype
from dflash_engines.device.device import Buffer, DeviceArray, Event, Graph, Pinned
from dflash_engines.errors import CaptureError, DeviceError, EngineError

Work = Callable[[], None]
_JUNK = 0xFF  # NaN in every floating-point type, -1 in integers


class HostBuffer:
    """Implements `device.Buffer`."""

    def __init__(self, nbytes: int) -> None:
        self.contents: NDArray[np.uint8] | None = np.full(nbytes, _JUNK, np.uint8)
        self.nbytes = nbytes

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """Its contents. Raises EngineError once it was freed."""
        if self.contents is None:
            raise EngineError("this device memory was freed")
        return self.contents

    @property
    def address(self) -> int:
        """See `device.Buffer`."""
        return self.bytes.ctypes.data


class HostPinned:
    """Implements `device.Pinned`."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.full(nbytes, _JUNK, np.uint8)


class HostEvent:
    """Implements `device.Event`. Looking at it lets the device do one more piece of work."""

    def __init__(self, device: "HostDevice") -> None:
        self._device = device
        self._recorded = self._passed = 0  # how often
        self.time = 0.0

    def record(self) -> None:
        """Only the latest recording counts, also while an earlier one still waits in the stream."""
        self._recorded += 1
        self._device.enqueue(partial(self._pass_by, self._recorded))

    def done(self) -> bool:
        """See `device.Event`."""
        if self._passed < self._recorded:
            self._device.advance()
        return self._passed == self._recorded

    def _pass_by(self, recording: int) -> None:
        self._passed, self.time = recording, perf_counter()


class HostGraph:
    """Implements `device.Graph`."""

    def __init__(self, work: list[Work]) -> None:
        self.work = work

    @property
    def nodes(self) -> int:
        """See `device.Graph`."""
        return len(self.work)


class HostDevice:
    """Implements `device.Device`."""

    name = "host memory"

    def __init__(self) -> None:
        self.lost: str | None = None
        self.live: set[object] = set()  # memory that was not given back
        self._queue: deque[Work] = deque()
        self._recorded: list[Work] | None = None

    def lose(self, reason: str) -> None:
        """See `device.Device`."""
        self.lost = self.lost or reason

    def enqueue(self, work: Work) -> None:
        """Put work in the stream: backends in host memory run their programs through this."""
        self._check()
        (self._queue if self._recorded is None else self._recorded).append(work)

    def advance(self) -> None:
        """Do one piece of work."""
        self._check()
        if self._queue:
            self._queue.popleft()()

    def view(self, array: DeviceArray) -> NDArray[Any]:
        """The array's memory."""
        piece = _host(array.buffer).bytes[array.offset : array.offset + array.nbytes]
        return piece.view(array_dtype(array.dtype)).reshape(array.shape)

    def allocate(self, nbytes: int) -> Buffer:
        """See `device.Device`."""
        self._refuse_in_capture("allocate")
        buffer = HostBuffer(nbytes)
        self.live.add(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """See `device.Device`."""
        self._refuse_in_capture("free")
        _host(buffer).bytes.fill(_JUNK)
        _host(buffer).contents = None
        self.live.remove(buffer)

    def pin(self, nbytes: int) -> Pinned:
        """See `device.Device`."""
        self._refuse_in_capture("pin")
        pinned = HostPinned(nbytes)
        self.live.add(pinned)
        return pinned

    def unpin(self, pinned: Pinned) -> None:
        """See `device.Device`."""
        self.live.remove(pinned)

    def zero(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """See `device.Device`."""
        self.enqueue(lambda: _host(buffer).bytes[offset : offset + nbytes].fill(0))

    def write(self, buffer: Buffer, offset: int, values: NDArray[Any]) -> None:
        """See `device.Device`."""
        taken = np.frombuffer(values.tobytes(), np.uint8)

        def work() -> None:
            _host(buffer).bytes[offset : offset + len(taken)] = taken

        self.enqueue(work)

    def copy(self, to: Buffer, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `device.Device`."""

        def work() -> None:
            _host(to).bytes[to_offset : to_offset + nbytes] = _host(source).bytes[
                source_offset : source_offset + nbytes
            ]

        self.enqueue(work)

    def read(self, to: Pinned, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `device.Device`."""

        def work() -> None:
            to.array[to_offset : to_offset + nbytes] = _host(source).bytes[source_offset : source_offset + nbytes]

        self.enqueue(work)

    def event(self) -> Event:
        """See `device.Device`."""
        return HostEvent(self)

    def record(self, event: Event) -> None:
        """See `device.Device`."""
        assert isinstance(event, HostEvent)
        event.record()

    def seconds(self, begin: Event, end: Event) -> float:
        """See `device.Device`."""
        assert isinstance(begin, HostEvent) and isinstance(end, HostEvent)
        return end.time - begin.time

    def capture(self, work: Work) -> Graph:
        """See `device.Device`."""
        self._refuse_in_capture("capture")
        self._recorded = []
        try:
            work()
            return HostGraph(self._recorded)
        finally:
            self._recorded = None

    def launch(self, graph: Graph) -> None:
        """See `device.Device`."""
        assert isinstance(graph, HostGraph)
        for work in graph.work:
            self.enqueue(work)

    def drop(self, graph: Graph) -> None:
        """See `device.Device`."""
        assert isinstance(graph, HostGraph)
        graph.work.clear()

    def synchronize(self) -> None:
        """See `device.Device`."""
        self._refuse_in_capture("wait")
        while self._queue:
            self.advance()

    def memory(self) -> tuple[int, int] | None:
        """See `device.Device`."""
        return None

    def close(self) -> None:
        """See `device.Device`."""
        self._queue.clear()

    def _check(self) -> None:
        if self.lost is not None:
            raise DeviceError(self.lost)

    def _refuse_in_capture(self, what: str) -> None:
        self._check()
        if self._recorded is not None:
            raise CaptureError(f"operation not permitted while capturing: {what}")


def _host(buffer: Buffer) -> HostBuffer:
    assert isinstance(buffer, HostBuffer)
    return buffer
