"""What an iteration costs on one engine: seconds by slots, live length and block size, measured once."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from time import perf_counter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dflash_engines.engine import Engine

BUDGET_SECONDS = 4.0  # that a measurement may take, as long as one iteration doesn't take most of it
SHORT = 64  # tokens; below, attention costs next to nothing
_ROUNDS = 7
_PARTS = ("draft", "target", "accept")
_ANCHOR = 0  # what is decoded doesn't matter
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one iteration at a moment, for each of the table's block sizes."""

    draft: Seconds  # of one launch of the drafter; 0 for block size 1
    target: Seconds  # and the host's share
    accept: Seconds  # of the greedy rule

    def total(self, denoise_steps: int = 1, accept_factor: float = 1.0) -> Seconds:
        """Of an iteration with that many launches of the drafter, and a rule so much dearer than the greedy one."""
        return self.draft * denoise_steps + self.target + self.accept * accept_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Measured seconds, by slots, live length and block size, in this order; linear in between."""

    slots: tuple[int, ...]
    lengths: tuple[int, ...]  # tokens
    block_sizes: tuple[int, ...]  # ascending, 1 first: plain decoding
    draft: tuple[tuple[tuple[float, ...], ...], ...]
    target: tuple[tuple[tuple[float, ...], ...], ...]
    accept: tuple[tuple[tuple[float, ...], ...], ...]

    def at(self, *, slots: float, length: float) -> Costs:
        """The costs for `slots` decoding slots with `length` live tokens on average."""
        return Costs(**{name: self._at(getattr(self, name), slots, length) for name in _PARTS})

    def _at(self, table: Any, slots: float, length: float) -> Seconds:
        by_length = _between(np.array(table), self.slots, slots)  # [lengths, sizes]
        return _between(by_length, self.lengths, length)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Raises ValueError, KeyError or TypeError when `fields` are not a whole table."""
        axes: Any = {name: tuple(int(n) for n in fields[name]) for name in ("slots", "lengths", "block_sizes")}
        shape = tuple(len(axis) for axis in axes.values())
        times = {name: np.array(fields[name], np.float64) for name in _PARTS}
        if any(part.shape != shape or not (part >= 0).all() for part in times.values()):
            raise ValueError(f"wanted times of shape {shape}, none negative")
        return cls(**axes, **{name: _nested(part) for name, part in times.items()})


def _between(table: Seconds, known: Sequence[int], wanted: float) -> Seconds:
    """Linear in the first axis; outside of what is known, the nearest."""
    place = float(np.interp(wanted, known, np.arange(len(known))))
    below = int(place)
    above = min(below + 1, len(known) - 1)
    between: Seconds = table[below] + (place - below) * (table[above] - table[below])
    return between


def _nested(table: Seconds) -> Any:
    """As tuples."""
    return tuple(_nested(part) for part in table) if table.ndim > 1 else tuple(float(x) for x in table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """What is measured; the points run over slots, lengths and sizes, in this order."""

    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def points(self) -> list[tuple[int, int, int]]:
        return list(product(self.slots, self.lengths, self.sizes))


def measure(engine: Engine, *, budget: float = BUDGET_SECONDS) -> CostTable:
    """Time iterations of every kind. No slot may be in use: all are cleared.

    The least time of several rounds, since a machine's other work only adds; the slower the engine, the fewer
    kinds are timed, and the others are taken as in between. Raises EngineError.
    """
    everything = next(iter(_grids(engine)))
    most, longest, largest = everything.slots[-1], everything.lengths[-1], everything.sizes[-1]
    first = sum(_iteration(engine, most, longest, largest))  # also binds, and touches memory
    slowest = min(first, sum(_iteration(engine, most, longest, largest)))
    fitting = (grid for grid in _grids(engine) if 2 * len(grid.points) * slowest < budget)
    grid = next(fitting, list(_grids(engine))[-1])
    least = np.full((len(grid.points), len(_PARTS)), np.inf)
    begin = perf_counter()
    for turn in range(_ROUNDS):
        for point, times in zip(grid.points, least, strict=True):
            np.minimum(times, _iteration(engine, *point), out=times)
        if (perf_counter() - begin) * (turn + 2) / (turn + 1) > budget:
            break
    for slot in range(most):
        engine.clear(slot)  # junk that overflowed would poison whoever comes next
    return _table(grid, everything.sizes, least)


def _grids(engine: Engine) -> Iterator[_Grid]:
    """From the finest to the coarsest."""
    limits = engine.limits
    sizes = tuple(sorted({1, *limits.block_sizes}))
    longest = limits.max_len - 1
    slots, few = tuple(sorted({1, limits.max_batch})), tuple(sorted({1, sizes[1], sizes[-1]}))
    short = min(SHORT, longest)
    yield _Grid(slots=slots, lengths=tuple(sorted({short, max(short, longest // 4), longest})), sizes=sizes)
    yield _Grid(slots=slots, lengths=tuple(sorted({short, longest})), sizes=sizes)
    yield _Grid(slots=slots, lengths=(short,), sizes=few)
    yield _Grid(slots=slots[-1:], lengths=(short,), sizes=few)


def _iteration(engine: Engine, slots: int, length: int, block_size: int) -> tuple[float, float, float]:
    """Seconds of each part of one iteration over the first `slots` slots."""
    for slot in range(slots):
        engine.place(slot, _ANCHOR, length, length)
    before, begin = engine.timing, perf_counter()
    engine.launch(block_size)
    engine.collect()
    whole, after = perf_counter() - begin, engine.timing
    for slot in range(slots):
        engine.park(slot)
    draft, accept = after.draft - before.draft, after.accept - before.accept
    return draft, max(0.0, whole - draft - accept), accept


def _table(grid: _Grid, sizes: tuple[int, ...], least: Seconds) -> CostTable:
    """The measured points, with the sizes that were left out taken as in between."""
    times = least.reshape(len(grid.slots), len(grid.lengths), len(grid.sizes), len(_PARTS))
    filled = np.apply_along_axis(lambda known: np.interp(sizes, grid.sizes, known), 2, times)
    return CostTable(
        slots=grid.slots,
        lengths=grid.lengths,
        block_sizes=sizes,
        **{name: _nested(filled[..., i]) for i, name in enumerate(_PARTS)},
    )
