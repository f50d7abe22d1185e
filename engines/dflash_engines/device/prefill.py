"""Prompts: chunks of one slot's rows, and the first new token. It has buffers of its own, beside the iterations'."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.accept_inputs import Mask, SlotRules
from dflash_engines.arena import array_dtype
from dflash_engines.contract import Limits
from dflash_engines.device.arena import Arrays, DeviceArena, within
from dflash_engines.device.flight import FOUND
from dflash_engines.device.iteration import bind
from dflash_engines.device.layout import Group, sizes
from dflash_engines.device.programs import DevicePrograms
from dflash_engines.device.ring import Ring, Ticket
from dflash_engines.device.watchdog import Watchdog
from dflash_engines.engine import Iteration, Logprobs

PROFILE = "prefill"
MIN_ROWS = 2  # of any call; a single token is padded, and the row written for the pad is overwritten later


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """On its way to the host."""

    ticket: Ticket
    arrays: Arrays


class Prefill:
    """Computes prompts, and accepts their first new tokens."""

    def __init__(
        self, arena: DeviceArena, programs: DevicePrograms, limits: Limits, mask_token_id: int, watchdog: Watchdog
    ) -> None:
        self._arena, self._programs, self._limits = arena, programs, limits
        self._mask_token_id, self._watchdog = mask_token_id, watchdog
        self._results = arena.layout.groups[Group.FIRST_TOKEN]
        self._ring = Ring(arena.device, self._results, 1)

    def rows(self, slot: int, tokens: Sequence[int], start: int) -> None:
        """Write the slot's rows of `tokens` from `start` on; logits of the last one."""
        rows = max(len(tokens), MIN_ROWS)
        arrays = self._arrays("target", slot, rows)
        padded = [*tokens, *[self._mask_token_id] * (rows - len(tokens))]
        values = {"tokens": [padded], "start": [start], "length": [start + rows], "rows": [[len(tokens) - 1]]}
        self._write(arrays, {name: np.array(value, np.int64) for name, value in values.items()})
        bind(self._arena, self._programs, "target", PROFILE, arrays)()

    def accept(self, slot: int, token: int, row: int, rules: SlotRules, mask: Mask | None) -> FirstToken:
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
        return FirstToken(ticket=self._ring.fetch(self._arena.buffer), arrays=within(arrays, self._results))

    def first_token(self, awaited: FirstToken) -> Iteration:
        """What `accept` found, once it is there."""
        found = self._ring.take(awaited.ticket, awaited.arrays, self._watchdog)
        known = {name: found[name] for name in FOUND}
        return Iteration(**known, active=np.ones(1, np.bool_), logprobs=Logprobs.among(found))

    def release(self) -> None:
        """Give the ring back."""
        self._ring.release()

    def _arrays(self, program: str, slot: int, rows: int) -> Arrays:
        size = sizes(self._limits, slots=1, rows_in=rows, rows_out=1)
        return self._arena.prefill_arrays(program, size, slot)

    def _write(self, arrays: Arrays, values: Mapping[str, NDArray[Any]]) -> None:
        for name, value in values.items():
            self._arena.device.write(arrays[name].buffer, arrays[name].offset, value)
