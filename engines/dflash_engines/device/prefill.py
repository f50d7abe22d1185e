"""Prompts: chunks of one slot's rows, and the first new token. It has buffers of its own, beside the iterations'."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.accept_inputs import Mask, SlotRules
from dflash_engines.arena import array_dtype
from dflash_engines.contract import Limits
from dflash_engines.device.arena import Arrays, DeviceArena
from dflash_engines.device.device import Event
from dflash_engines.device.iteration import bind
from dflash_engines.device.layout import ALIGNMENT, sizes
from dflash_engines.device.programs import DevicePrograms
from dflash_engines.device.watchdog import Watchdog
from dflash_engines.engine import Iteration

PROFILE = "prefill"
MIN_ROWS = 2  # of any call; a single token is padded, and the row written for the pad is overwritten later
_FOUND = ("block", "sampled", "accepted", "finite")


class Prefill:
    """Computes prompts, and accepts their first new tokens."""

    def __init__(
        self, arena: DeviceArena, programs: DevicePrograms, limits: Limits, mask_token_id: int, watchdog: Watchdog
    ) -> None:
        self._arena, self._programs, self._limits = arena, programs, limits
        self._mask_token_id, self._watchdog = mask_token_id, watchdog
        self._pinned = arena.device.pin(len(_FOUND) * ALIGNMENT)
        self._arrived: Event = arena.device.event()

    def rows(self, slot: int, tokens: Sequence[int], start: int) -> None:
        """Write the slot's rows of `tokens` from `start` on; logits of the last one."""
        rows = max(len(tokens), MIN_ROWS)
        arrays = self._arrays("target", slot, rows)
        padded = [*tokens, *[self._mask_token_id] * (rows - len(tokens))]
        values = {"tokens": [padded], "start": [start], "length": [start + rows], "rows": [[len(tokens) - 1]]}
        self._write(arrays, {name: np.array(value, np.int64) for name, value in values.items()})
        bind(self._arena, self._programs, "target", PROFILE, arrays)()

    def accept(self, slot: int, token: int, row: int, rules: SlotRules, mask: Mask | None) -> None:
        """Choose the token after `token`, which stands at `row` and was the last of `rows`."""
        name = rules.sampling.variant.name
        arrays = self._arrays(name, slot, 1)
        declared = self._arena.programs[name].inputs
        inputs = {b.name: np.zeros(arrays[b.name].shape, array_dtype(b.dtype)) for b in declared if b.name != "logits"}
        for at, value in {"start": row, "forced": 1, "count": 1, "limit": self._limits.max_len}.items():
            inputs[at][0] = value
        inputs["block"][0, 0] = token
        rules.fill(inputs, 0, mask)
        self._write(arrays, inputs)
        bind(self._arena, self._programs, name, PROFILE, arrays)()
        for place, found in enumerate(_FOUND):
            array = arrays[found]
            self._arena.device.read(self._pinned, place * ALIGNMENT, array.buffer, array.offset, array.nbytes)
        self._arena.device.record(self._arrived)

    def first_token(self) -> Iteration:
        """What `accept` found, once it is there."""
        self._watchdog.wait(self._arrived)
        kinds = {"block": (np.int64, (1, 1)), "sampled": (np.int64, (1, 1)), "accepted": (np.int64, (1,)),
                 "finite": (np.bool_, (1,))}  # fmt: skip
        found: dict[str, NDArray[Any]] = {}
        for place, name in enumerate(_FOUND):
            dtype, shape = kinds[name]
            found[name] = np.frombuffer(self._pinned.array, dtype, 1, place * ALIGNMENT).reshape(shape).copy()
        return Iteration(**found, active=np.ones(1, np.bool_))

    def release(self) -> None:
        """Give the memory back."""
        self._arena.device.unpin(self._pinned)

    def _arrays(self, program: str, slot: int, rows: int) -> Arrays:
        size = sizes(self._limits, slots=1, rows_in=rows, rows_out=1)
        return self._arena.prefill_arrays(program, size, slot)

    def _write(self, arrays: Arrays, values: Mapping[str, NDArray[Any]]) -> None:
        for name, value in values.items():
            self._arena.device.write(arrays[name].buffer, arrays[name].offset, value)
