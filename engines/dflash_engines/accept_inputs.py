"""What the rules of each slot put into accept's inputs; neutral values where a slot doesn't use a rule."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.backend import Buffers
from dflash_engines.contract import Geometry
from dflash_engines.errors import EngineError
from dflash_engines.sampling import LIKELIEST, SamplingParameters

Mask = NDArray[np.int32]  # [K, W] for the rows of a block: one bit a token, 0 forbids
ALLOWED = -1  # a mask word of ones
_NAMES = {field.name for field in fields(SamplingParameters)}  # bindings have the fields' names


class SlotRules:
    """One request's rules."""

    def __init__(self, sampling: SamplingParameters) -> None:
        self.sampling = sampling

    def fill(self, arrays: Buffers, row: int, mask: Mask | None) -> None:
        """Write row `row` of those inputs that the variant of accept has."""
        for name in _NAMES & arrays.keys():
            arrays[name][row] = getattr(self.sampling, name)
        if "grammar_mask" in arrays:
            _fill_mask(arrays["grammar_mask"][row], mask)


def _fill_mask(rows: NDArray[Any], mask: Mask | None) -> None:
    """Rows behind the block are padding."""
    rows[:] = ALLOWED
    if mask is not None:
        rows[: len(mask)] = mask


IDLE = SlotRules(LIKELIEST)


def check_masks(rules: Sequence[SlotRules], masks: Mapping[int, Mask], geometry: Geometry, rows: int) -> None:
    """Raises EngineError unless exactly the constrained slots have a mask, of `rows` rows."""
    constrained = {slot for slot, rule in enumerate(rules) if rule.sampling.controls.constrained}
    if constrained != masks.keys():
        raise EngineError(f"slots {sorted(constrained)} are constrained, masks came for {sorted(masks)}")
    for slot, mask in masks.items():
        if mask.shape != (rows, geometry.mask_words) or mask.dtype != np.int32:
            raise EngineError(f"the mask of slot {slot} must be int32 [{rows}, {geometry.mask_words}], "
                              f"not {mask.dtype} {list(mask.shape)}")  # fmt: skip
