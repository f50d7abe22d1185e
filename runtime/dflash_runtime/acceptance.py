"""Running acceptance: how often each drafted position is kept, given that all before it were; old passes fade."""

import numpy as np
from numpy.typing import NDArray


class Acceptance:
    """Decayed counts by drafted position, over a prior that stands in where counts are few."""

    def __init__(self, positions: int, *, memory: float) -> None:
        """Counts of the last `memory` passes or so weigh in."""
        self._kept, self._tried = np.zeros(positions), np.zeros(positions)
        self._fade = 1 - 1 / memory

    def observe(self, *, drafted: int, kept: int) -> None:
        """A pass drafted so many tokens, of which the leading `kept` were right."""
        self._kept *= self._fade
        self._tried *= self._fade
        self._kept[:kept] += 1
        self._tried[: min(kept + 1, drafted)] += 1

    def rates(self, prior: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """For each position, the share kept; `prior` counts as much as `weight` passes."""
        found: NDArray[np.float64] = (self._kept + weight * prior) / (self._tried + weight)
        return found

    def chained_rates(self, first: float, weight: float) -> NDArray[np.float64]:
        """As `rates`, where each position's prior is the rate of the one before: far ahead, little has been tried."""
        rates, prior = np.empty(len(self._kept)), first
        for position, (kept, tried) in enumerate(zip(self._kept, self._tried, strict=True)):
            rates[position] = prior = (kept + weight * prior) / (tried + weight)
        return rates
