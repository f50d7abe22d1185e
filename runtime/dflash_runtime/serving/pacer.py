"""How much prompt to compute between two iterations, so that running requests hardly notice."""

LEAST_ROWS = 16  # of a chunk: prompts move on, whatever the iterations cost
_SMOOTHING, _DEVIATION_SMOOTHING, _DEVIATIONS = 1 / 8, 1 / 4, 4


class HighEstimate:
    """What a noisy duration rarely exceeds: its running mean and four mean deviations, as in RFC 6298."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._deviation = 0.0

    def add(self, seconds: float) -> None:
        """Take in one measurement."""
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += _DEVIATION_SMOOTHING * (abs(seconds - self._mean) - self._deviation)
        self._mean += _SMOOTHING * (seconds - self._mean)

    @property
    def value(self) -> float | None:
        """In seconds; None before the first measurement."""
        return None if self._mean is None else self._mean + _DEVIATIONS * self._deviation


class Pacer:
    """Sizes prefill chunks: an iteration and the chunk after it shall take no longer than `target_gap` seconds.

    Sizes are the engine's chunk halved some times, so that an engine sees few shapes.
    """

    def __init__(self, *, prefill_chunk: int, target_gap: float) -> None:
        self.target_gap = target_gap
        self._sizes = [prefill_chunk]
        while self._sizes[-1] // 2 >= LEAST_ROWS:
            self._sizes.append(self._sizes[-1] // 2)
        self._iteration, self._row = HighEstimate(), HighEstimate()

    def rows(self) -> int:
        """The rows of a chunk while others decode; the least ones when nothing was measured yet."""
        iteration, row = self._iteration.value, self._row.value
        if iteration is None or row is None:
            return self._sizes[-1]
        left = self.target_gap - iteration
        return next((size for size in self._sizes if size * row <= left), self._sizes[-1])

    def iterated(self, seconds: float) -> None:
        """An iteration took that long."""
        self._iteration.add(seconds)

    def prefilled(self, rows: int, seconds: float) -> None:
        """A chunk of `rows` took that long."""
        self._row.add(seconds / rows)
