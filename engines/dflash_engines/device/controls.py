"""Inputs that the host decides: kept in host memory as they lie on the device, and uploaded when they change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.accept_inputs import Mask, SlotRules
from dflash_engines.arena import array_dtype
from dflash_engines.device.arena import Arrays, DeviceArena, within
from dflash_engines.device.device import DeviceArray
from dflash_engines.device.layout import Group, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What accept is told of one slot."""

    count: int  # rows of the block in use
    limit: int
    rules: SlotRules


class Controls:
    """The host's copy of `Group.CONTROLS` and `Group.RULES`, which are neighbours."""

    def __init__(self, arena: DeviceArena) -> None:
        self._arena = arena
        self._small, self._large = (arena.layout.groups[group] for group in (Group.CONTROLS, Group.RULES))
        self._both = Span(offset=self._small.offset, nbytes=self._small.nbytes + self._large.nbytes)
        self._copy = np.zeros(self._both.nbytes, np.uint8)

    def fill(self, arrays: Arrays, places: Mapping[int, Place]) -> None:
        """Tell the device these slots' places, without masks."""
        views = self._views(arrays)
        for index, place in places.items():
            views["rows"][index] = np.arange(views["rows"].shape[1])
            views["forced"][index], views["count"][index], views["limit"][index] = 1, place.count, place.limit
            place.rules.fill(views, index, None)
        self._upload(arrays, places)

    def mask(self, arrays: Arrays, rules: Sequence[SlotRules], masks: Mapping[int, Mask]) -> None:
        """Tell the device all slots' rules again, with masks."""
        views = self._views(arrays)
        for index, rule in enumerate(rules):
            rule.fill(views, index, masks.get(index))
        self._upload(arrays, range(len(rules)))

    def _views(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        return {name: self._view(array) for name, array in within(arrays, self._both).items()}

    def _view(self, array: DeviceArray) -> NDArray[Any]:
        begin = array.offset - self._both.offset
        return self._copy[begin : begin + array.nbytes].view(array_dtype(array.dtype)).reshape(array.shape)

    def _upload(self, arrays: Arrays, slots: Iterable[int]) -> None:
        """The small ones whole, the large ones by slot."""
        write, buffer = self._arena.device.write, self._arena.buffer
        write(buffer, self._small.offset, self._copy[: self._small.nbytes])
        indices = list(slots)
        for array in within(arrays, self._large).values():
            row = array.nbytes // array.shape[0]
            for begin in (array.offset + index * row for index in indices):
                at = begin - self._both.offset
                write(buffer, begin, self._copy[at : at + row])
