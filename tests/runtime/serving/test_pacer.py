import random

import pytest

from dflash_runtime.serving.pacer import HighEstimate, Pacer

CHUNK = 512


def paced(*, iteration: float, row: float, target_gap: float = 0.2, chunk: int = CHUNK) -> Pacer:
    pacer = Pacer(prefill_chunk=chunk, target_gap=target_gap)
    for _ in range(50):
        pacer.iterated(iteration)
        pacer.prefilled(64, 64 * row)
    return pacer


@pytest.mark.parametrize(
    ("iteration", "row", "rows"),
    [
        (0.05, 0.0001, 512),  # 0.15 s are left, the whole chunk takes 0.05
        (0.05, 0.001, 128),  # 0.128 s
        (0.05, 0.004, 32),
        (0.05, 0.02, 16),  # even the least is too slow, but a prompt must move on
        (0.30, 0.0001, 16),  # iterations alone are over the target
    ],
)
def test_the_largest_chunk_that_fits_beside_an_iteration(iteration: float, row: float, rows: int) -> None:
    assert paced(iteration=iteration, row=row).rows() == rows


def test_the_least_until_something_was_measured() -> None:
    assert Pacer(prefill_chunk=CHUNK, target_gap=0.2).rows() == 16


@pytest.mark.parametrize("chunk", [1, 15, 16, 31])
def test_an_engine_with_small_chunks(chunk: int) -> None:
    assert paced(iteration=0.3, row=0.1, chunk=chunk).rows() == chunk


def test_the_estimate_is_rarely_exceeded_and_follows_a_change() -> None:
    dice, estimate, over = random.Random(7), HighEstimate(), 0
    for i in range(4000):
        seconds = dice.lognormvariate(-3, 0.4)
        over += i > 20 and seconds > (estimate.value or 0)
        estimate.add(seconds)
    assert over / 4000 < 0.03
    for _ in range(100):
        estimate.add(1.0)
    assert estimate.value == pytest.approx(1.0, rel=0.05)
