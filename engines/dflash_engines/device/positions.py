"""Where each slot stands, as far as the host has read, and what the device must be told of it.

The device may be an iteration ahead of the host. A slot is written to it only where it can't know by itself: when the
slot is placed or parked, or when work of another shape finds nothing to go on from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_engines.accept_inputs import IDLE, Mask, SlotRules
from dflash_engines.contract import Limits
from dflash_engines.device.arena import DeviceArena
from dflash_engines.device.controls import Controls, Place
from dflash_engines.device.iteration import IterationWork
from dflash_engines.engine import Iteration


@dataclass(slots=True, kw_only=True)
class _Slot:
    placed: bool = False
    anchor: int = 0  # the token that its next block begins with
    start: int = 0  # the row of that token
    limit: int = 0
    rules: SlotRules = IDLE


class Positions:
    """All slots of an engine."""

    def __init__(self, arena: DeviceArena, limits: Limits, mask_token_id: int) -> None:
        self._arena, self._limits, self._mask_token_id = arena, limits, mask_token_id
        self._controls = Controls(arena)
        self._slots = [_Slot() for _ in range(limits.max_batch)]
        self._untold: set[int] = set()  # placed or parked since the device was told

    @property
    def placed(self) -> NDArray[np.bool_]:
        """Which slots take part in the next iteration, [B]."""
        return np.array([slot.placed for slot in self._slots])

    @property
    def rules(self) -> list[SlotRules]:
        """Every slot's rules."""
        return [slot.rules for slot in self._slots]

    @property
    def counting(self) -> list[int]:
        """The slots whose every token changes an input, so that none may be launched ahead of them."""
        return [index for index, slot in enumerate(self._slots) if slot.rules.counts_tokens]

    def place(self, index: int, anchor: int, start: int, limit: int, rules: SlotRules) -> None:
        """The slot takes part from here on."""
        self._slots[index] = _Slot(placed=True, anchor=anchor, start=start, limit=limit, rules=rules)
        self._untold.add(index)

    def park(self, index: int) -> None:
        """The slot takes part no more."""
        self._slots[index] = _Slot()
        self._untold.add(index)

    def advance(self, found: Iteration, next_start: NDArray[np.int64]) -> None:
        """The host has read an iteration."""
        for index in np.flatnonzero(found.active):
            slot, gained = self._slots[index], found.sampled[index, : found.accepted[index] + 1]
            slot.rules.commit(gained)
            slot.anchor = max(int(gained[-1]), 0)  # as accept does
            slot.start = int(next_start[index])

    def tell_idle(self, work: IterationWork) -> None:
        """Let the device believe that every slot is idle; it must be told all before the next real work."""
        idle = _Slot()
        self._tell_positions(work, dict.fromkeys(range(work.key.slots), idle))
        self._controls.fill(work.arrays, dict.fromkeys(range(work.key.slots), self._place(idle, 0)))

    def tell_all(self, work: IterationWork, count: int) -> None:
        """The device knows nothing: tell it every slot that `work` computes, and that `count` rows are in use."""
        self._tell_positions(work, dict(enumerate(self._slots[: work.key.slots])))
        self.tell_count(work, count)

    def tell_changed(self, work: IterationWork, count: int) -> None:
        """The device has gone on from where it was: tell it the slots that were placed or parked since."""
        changed = sorted(index for index in self._untold if index < work.key.slots)
        if changed:
            self._tell_positions(work, {index: self._slots[index] for index in changed})
        if told := sorted({*changed, *self.counting}):
            self._controls.fill(work.arrays, self._places(told, count))
        self._untold.clear()

    def tell_count(self, work: IterationWork, count: int) -> None:
        """The controls of all slots again, for `count` rows in use."""
        self._controls.fill(work.arrays, self._places(range(work.key.slots), count))
        self._untold.clear()

    def tell_masks(self, work: IterationWork, masks: Mapping[int, Mask]) -> None:
        """This iteration's grammar masks."""
        self._controls.mask(work.arrays, self.rules[: work.key.slots], masks)

    def tell_blocks(self, work: IterationWork, blocks: NDArray[np.int64]) -> None:
        """This iteration's blocks [B,K], where the host has edited them."""
        for index, block in enumerate(blocks[: work.key.slots].tolist()):
            self._write(work, "block", index, [*block, *[self._mask_token_id] * (work.key.rows - len(block))])

    def _places(self, indices: Iterable[int], count: int) -> dict[int, Place]:
        return {index: self._place(self._slots[index], count) for index in indices}

    def _place(self, slot: _Slot, count: int) -> Place:
        """An idle slot uses no rows."""
        limit, rows = (slot.limit, count) if slot.placed else (self._limits.max_len, 0)
        return Place(count=rows, limit=limit, rules=slot.rules)

    def _tell_positions(self, work: IterationWork, slots: Mapping[int, _Slot]) -> None:
        """An idle slot writes to the guard rows and attends to one row: its caches stay as they are."""
        rows = work.key.rows
        for index, slot in slots.items():
            self._write(work, "next_block", index, [slot.anchor, *[self._mask_token_id] * (rows - 1)])
            self._write(work, "start", index, [slot.start if slot.placed else self._limits.max_len])
            self._write(work, "length", index, [slot.start + rows if slot.placed else 1])

    def _write(self, work: IterationWork, name: str, index: int, values: list[int]) -> None:
        """One slot's row of an array of the device's."""
        row = np.array(values, np.int64)
        self._arena.device.write(self._arena.buffer, work.arrays[name].offset + index * row.nbytes, row)
