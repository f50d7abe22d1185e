"""What shapes of acceptance mean."""

import pytest

from dflash_engines.finding import Verdict
from dflash_engines.signature import judge

HEALTHY_MATHS = [0.87, 0.80, 0.79, 0.78, 0.78, 0.77, 0.76]
TINY = [0.89, 0.85, 0.83, 0.75, 0.72, 0.79, 0.74]
CHAT = [0.72, 0.66, 0.65]


@pytest.mark.parametrize("healthy", [HEALTHY_MATHS, TINY, CHAT])
def test_healthy_shapes_are_ok(healthy: list[float]) -> None:
    assert judge(healthy, 300).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("shape", "verdict", "word"),
    [
        ([0.01, 0.0], Verdict.FAULT, "nothing is kept"),
        ([1.0, 1.0, 1.0], Verdict.WARNING, "everything is kept"),
        ([0.85, 0.40, 0.20], Verdict.WARNING, "steep fall"),
        ([0.50, 0.48, 0.46], Verdict.WARNING, "young drafter"),
    ],
)
def test_each_shape_is_named(shape: list[float], verdict: Verdict, word: str) -> None:
    found = judge(shape, 300)
    assert found.verdict is verdict and word in found.fix


def test_a_few_blocks_are_no_evidence() -> None:
    assert judge([0.0], 5).verdict is Verdict.SKIPPED
    assert judge([1.0, 1.0], 30).verdict is Verdict.OK
