"""Results on their way to the host: pinned memory for the iterations in flight, one place each, used in turn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.arena import array_dtype
from dflash_engines.device.device import Buffer, Device, DeviceArray, Event
from dflash_engines.device.layout import Span
from dflash_engines.device.watchdog import Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One place of the ring, filled when `arrived` is done."""

    offset: int
    arrived: Event


class Ring:
    """Places for `depth` iterations' results. A place is taken again `depth` tickets later."""

    def __init__(self, device: Device, span: Span, depth: int) -> None:
        self._device, self._span, self.depth = device, span, depth
        self._pinned = device.pin(depth * span.nbytes)
        self._events = [device.event() for _ in range(depth)]
        self._issued = 0

    def fetch(self, source: Buffer) -> Ticket:
        """Let the results follow the work that is in the stream; returns where they will be."""
        place = self._issued % self.depth
        self._issued += 1
        offset = place * self._span.nbytes
        self._device.read(self._pinned, offset, source, self._span.offset, self._span.nbytes)
        self._device.record(self._events[place])
        return Ticket(offset=offset, arrived=self._events[place])

    def take(self, ticket: Ticket, arrays: Mapping[str, DeviceArray], watchdog: Watchdog) -> dict[str, NDArray[Any]]:
        """Copies of the results, once they have arrived. Raises DeviceError when they don't."""
        watchdog.wait(ticket.arrived)
        piece = self._pinned.array[ticket.offset : ticket.offset + self._span.nbytes]
        return {name: _copy(piece, array, self._span.offset) for name, array in arrays.items()}

    def release(self) -> None:
        """Give the memory back."""
        self._device.unpin(self._pinned)


def _copy(piece: NDArray[np.uint8], array: DeviceArray, begin: int) -> NDArray[Any]:
    found = piece[array.offset - begin : array.offset - begin + array.nbytes]
    return found.view(array_dtype(array.dtype)).reshape(array.shape).copy()
