"""Numbers as callers give them, also NumPy's, and the one error for what is none."""

from math import nan
from numbers import Real
from typing import Any

from dflash_engines.errors import RequestError
from dflash_engines.whole_number import whole_number


def real(name: str, value: Any, low: float, high: float, wanted: str) -> float:
    """`value` as a float within low..high. Raises RequestError, naming it: for text, True and NaN too."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    check(name, value, low <= number <= high, wanted)
    return number


def whole(name: str, value: Any, low: int, high: int, wanted: str) -> int:
    """`value` as an int within low..high. Raises RequestError, naming it: for text, True and 2.0 too."""
    number = whole_number(value)
    check(name, value, number is not None and low <= number <= high, wanted)
    return int(value)


def check(name: str, value: Any, right: bool, wanted: str) -> None:
    """Raises RequestError unless `right`."""
    if not right:
        raise RequestError(f"{name} must be {wanted}, not {value!r}")
