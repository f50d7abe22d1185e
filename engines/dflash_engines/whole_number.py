"""Whole numbers as callers give them: int, or an integer of NumPy."""

import operator
from typing import Any


def whole_number(value: Any) -> int | None:
    """`value` as an int; None for all else: text, fractions (2.0 too), True and False."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
