"""A median, with how far the measurements lie apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Half of the values lie within low..high."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """None when there is no value."""
        if not values:
            return None
        low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
        return cls(median=median(values), low=low, high=high, count=len(values))

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"
