"""The pure rules: where an answer is cut, and what two prompts share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_runtime.slot import cut, shared_prefix

STOP = 9


@pytest.mark.parametrize(
    ("gained", "budget", "kept", "reason"),
    [
        ([1, 2, 3], 10, (1, 2, 3), None),
        ([1, 2, 3], 3, (1, 2, 3), "length"),
        ([1, 2, 3], 2, (1, 2), "length"),
        ([STOP], 1, (STOP,), "stop"),
        ([1, STOP, 3], 10, (1, STOP), "stop"),
        ([1, STOP, 3], 2, (1, STOP), "stop"),
        ([1, STOP, 3], 1, (1,), "length"),  # the stop comes after the cap
        ([1, 2, STOP, STOP], 10, (1, 2, STOP), "stop"),
    ],
)
def test_cut(gained: list[int], budget: int, kept: tuple[int, ...], reason: str | None) -> None:
    assert cut(gained, budget, frozenset({STOP})) == (kept, reason)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_shared_prefix_is_the_longest(held: list[int], wanted: list[int]) -> None:
    shared = shared_prefix(held, tuple(wanted))
    assert held[:shared] == wanted[:shared]
    assert shared == min(len(held), len(wanted)) or held[shared] != wanted[shared]
