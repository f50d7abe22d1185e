"""What an engine asks of a device: memory, one stream of work in order, events, graphs of recorded work.

All methods that move data or start work return at once; the work is done in the order of the calls. Sizes are bytes.
Any method may raise EngineError, and DeviceError when this process can't use the device any more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash_engines.contract import Dtype


class Buffer(Protocol):
    """Device memory. Its contents are undefined until they are written."""

    @property
    def address(self) -> int:
        """Where it lies. Raises EngineError once it was freed."""
        ...

    @property
    def nbytes(self) -> int:
        """Its size."""
        ...


class Pinned(Protocol):
    """Host memory that the device writes to by itself."""

    @property
    def array(self) -> NDArray[np.uint8]:
        """Its contents; valid where an event recorded after the writing has passed."""
        ...


class Event(Protocol):
    """A place in the stream."""

    def done(self) -> bool:
        """Whether the work before its latest recording is done. Never waits."""
        ...


class Graph(Protocol):
    """Recorded work, launched as one."""

    @property
    def nodes(self) -> int | None:
        """Pieces of work in it; None where the device doesn't tell."""
        ...


class Device(Protocol):
    """One device and the one stream that an engine uses on it."""

    @property
    def name(self) -> str:
        """For people: the model of the device."""
        ...

    @property
    def lost(self) -> str | None:
        """Why this process can't use the device any more; None as long as it can."""
        ...

    def lose(self, reason: str) -> None:
        """Give the device up: every later call raises DeviceError."""
        ...

    def allocate(self, nbytes: int) -> Buffer:
        """New memory, aligned to at least 256 bytes."""
        ...

    def free(self, buffer: Buffer) -> None:
        """Give memory back; nothing in the stream may still use it."""
        ...

    def pin(self, nbytes: int) -> Pinned:
        """New host memory for `read`."""
        ...

    def unpin(self, pinned: Pinned) -> None:
        """Give host memory back."""
        ...

    def zero(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """Fill with zero bytes."""
        ...

    def write(self, buffer: Buffer, offset: int, values: NDArray[Any]) -> None:
        """Copy `values` (contiguous) to the device. They may be changed as soon as the call returns."""
        ...

    def copy(self, to: Buffer, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """Copy within the device."""
        ...

    def read(self, to: Pinned, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """Copy to pinned host memory."""
        ...

    def event(self) -> Event:
        """A new event, not yet recorded, and therefore done."""
        ...

    def record(self, event: Event) -> None:
        """Put the event behind all work so far."""
        ...

    def seconds(self, begin: Event, end: Event) -> float:
        """The device's time between two events that are done."""
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record what `work` puts in the stream, without doing it. Raises CaptureError when something can't be."""
        ...

    def launch(self, graph: Graph) -> None:
        """Do a graph's work."""
        ...

    def drop(self, graph: Graph) -> None:
        """Give a graph back."""
        ...

    def synchronize(self) -> None:
        """Wait until all work is done."""
        ...

    def memory(self) -> tuple[int, int] | None:
        """Free and total bytes of the device; None where it isn't told."""
        ...

    def close(self) -> None:
        """Give back the stream and everything else that is the device's own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArray:
    """A contiguous array in device memory."""

    buffer: Buffer
    offset: int
    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def address(self) -> int:
        """Where its first element lies."""
        return self.buffer.address + self.offset

    @property
    def nbytes(self) -> int:
        """Its size."""
        return prod(self.shape) * self.dtype.size
