from collections import Counter

import pytest

from dflash_runtime.bench.spread import Spread
from dflash_runtime.bench.tally import Tally, merged


def test_counts_by_position() -> None:
    found = Tally(passes=Counter({(4, 1): 2, (4, 2): 1, (4, 4): 1}))
    assert found.acceptance_length == pytest.approx((1 + 1 + 2 + 4) / 4)
    assert found.acceptance_rate == pytest.approx(4 / 12)
    assert found.by_position == [0.5, 0.25, 0.25]
    assert found.conditional == [0.5, 0.5, 1.0]


def test_blocks_of_several_sizes_count_where_they_drafted() -> None:
    found = Tally(passes=Counter({(2, 2): 1, (4, 1): 1}))
    assert found.by_position == [0.5, 0.0, 0.0]
    assert merged([found, found]).count == 4


def test_nothing_drafted() -> None:
    assert (Tally().acceptance_length, Tally().acceptance_rate, Tally().conditional) == (1.0, 0.0, [])


def test_spread() -> None:
    assert Spread.of([]) is None
    assert str(Spread.of([2.0])) == "2.00"
    assert str(Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])) == "3.00 (2.00-4.00)"
