"""The choice of block sizes, on cost tables and acceptance made up for the purpose."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_runtime.block_size import BlockSizes
from dflash_runtime.cost_table import CostTable

SIZES = (1, 2, 4, 8)
VERIFY = (10.0, 10.5, 12.0, 15.0)
DRAFT = (0.0, 1.0, 1.5, 2.0)


def table(verify: tuple[float, ...] = VERIFY, draft: tuple[float, ...] = DRAFT) -> CostTable:
    """Two slots at once cost half as much again; length doesn't matter."""
    both = tuple(1.5 * seconds for seconds in verify)
    return CostTable(
        slots=(1, 2), lengths=(100,), block_sizes=SIZES, draft=((draft,), (draft,)), target=((verify,), (both,)),
        accept=(((0.1, 0.1, 0.2, 0.4),),) * 2,
    )  # fmt: skip


def decode(sizes: BlockSizes, right: list[bool], slot: int = 0) -> tuple[list[int], float]:
    """Block sizes and seconds of walking over tokens that the drafter would guess `right`, or not."""
    at, used, seconds = 0, [], 0.0
    while at < len(right):
        size = sizes.choose({slot: 100})
        ahead = right[at + 1 : at + size]
        gained = 1 + next((i for i, guessed in enumerate(ahead) if not guessed), len(ahead))
        sizes.observe(slot, block_size=size, gained=gained)
        seconds += VERIFY[SIZES.index(size)] + DRAFT[SIZES.index(size)]
        used.append(size)
        at += gained
    return used, seconds


def started() -> BlockSizes:
    sizes = BlockSizes(table())
    sizes.admit(0)
    return sizes


def test_a_drafter_that_is_always_right_gets_the_largest_block() -> None:
    used, _ = decode(started(), [True] * 400)
    assert set(used[10:]) == {8}


def test_a_drafter_that_is_always_wrong_is_left_out_but_for_cheap_probes() -> None:
    used, seconds = decode(started(), [False] * 1000)
    assert seconds < 1.02 * 1000 * VERIFY[0]
    assert 5 < sum(size > 1 for size in used[200:]) < 150


def test_it_sees_when_drafting_begins_to_pay_and_when_it_ends() -> None:
    sizes = started()
    decode(sizes, [False] * 500)
    used, _ = decode(sizes, [True] * 400)
    assert used[-1] == 8 and used.count(8) > 30
    used, _ = decode(sizes, [False] * 200)
    assert Counter(used[-50:]).most_common(1)[0][0] == 1


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_it_is_nearly_as_fast_as_the_best_fixed_size(rate: float) -> None:
    drawn = random.Random(5)
    right = [drawn.random() < rate for _ in range(4000)]
    expected = {
        size: (VERIFY[i] + DRAFT[i]) / sum(rate**k for k in range(size)) for i, size in enumerate(SIZES)
    }  # seconds a token
    assert decode(started(), right)[1] < 1.03 * min(expected.values()) * len(right)


def test_the_first_block_of_an_engine_is_drafted() -> None:
    assert started().choose({0: 10}) > 1


def test_a_new_request_starts_from_what_the_engine_has_seen() -> None:
    sizes = started()
    decode(sizes, [False] * 300)
    sizes.admit(0)
    assert sizes.choose({0: 100}) <= 2
    decode(sizes, [True] * 900)
    sizes.admit(0)
    assert sizes.choose({0: 100}) == 8


def test_one_size_is_chosen_for_the_whole_batch() -> None:
    """A slot that gains nothing costs its neighbour less than drafting gains it; with four of them, it doesn't pay."""
    sizes = BlockSizes(table())
    for slot in range(6):
        sizes.admit(slot)
    for _ in range(60):
        sizes.observe(0, block_size=8, gained=8)
        for slot in range(1, 6):
            sizes.observe(slot, block_size=8, gained=1)
    assert sizes.choose({0: 100}) == sizes.choose({0: 100, 1: 100}) == 8
    assert sizes.choose(dict.fromkeys(range(1, 6), 100)) == 1


def test_more_launches_of_the_drafter_make_drafting_dearer() -> None:
    sizes = started()
    for _ in range(60):
        sizes.observe(0, block_size=2, gained=2)
        sizes.observe(0, block_size=2, gained=1)
    assert sizes.choose({0: 100}, denoise_steps=1) > 1
    assert sizes.choose({0: 100}, denoise_steps=20) == 1


@given(st.lists(st.tuples(st.sampled_from(SIZES[1:]), st.integers(1, 8), st.integers(0, 2)), max_size=60))
def test_any_history_gives_a_size_of_the_table(passes: list[tuple[int, int, int]]) -> None:
    sizes = BlockSizes(table())
    for slot in range(3):
        sizes.admit(slot)
    for size, gained, slot in passes:
        sizes.observe(slot, block_size=size, gained=min(gained, size))
        assert sizes.choose({0: 1, 1: 10**6, 2: 5}) in SIZES


def test_rules_that_are_dear_a_row_make_blocks_smaller() -> None:
    """A filter is a bisection for each row: what it costs shows in the passes, not in the table."""
    sizes = started()
    for _ in range(60):
        sizes.observe(0, block_size=8, gained=6)
    assert sizes.choose({0: 100}) == 8
    for _ in range(60):
        sizes.observe_accept({0: 100}, block_size=8, seconds=40.0)
    assert sizes.choose({0: 100}) == 4
    for _ in range(60):
        sizes.observe_accept({0: 100}, block_size=4, seconds=0.2)
    assert sizes.choose({0: 100}) == 8
