"""What a request may say: numbers of Python and NumPy, and one clear error for everything else."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dflash_engines.accept_variant import (
    ACCEPT_VARIANTS,
    CONSTRAINED,
    EVERYTHING,
    FILTERED,
    GREEDY,
    REJECTION,
    REPORTED,
    SAMPLING,
    AcceptVariant,
    cheapest,
)
from dflash_engines.controls import Controls, biases
from dflash_engines.errors import RequestError
from dflash_engines.sampling import MAX_SEED, SamplingParameters

NO_NUMBERS: list[Any] = ["0.5", b"1", None, True, np.bool_(True), [0.5], {}, 1j, Decimal("0.5"), float("nan"), ...]
REALS = ("temperature", "top_p", "min_p")
WHOLES = ("top_k", "seed")


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", [*REALS, *WHOLES])
def test_what_is_no_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} must be .*, not "):
        SamplingParameters(**{name: value})


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty", "min_tokens"])
def test_controls_refuse_it_too(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} must be .*, not "):
        Controls(**{name: value})


@pytest.mark.parametrize("name", WHOLES)
@pytest.mark.parametrize("value", [1.0, 2.5, np.float32(2), -1])
def test_whole_numbers_are_whole(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} must be"):
        SamplingParameters(**{name: value})


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.uint64, int, float, Fraction])
def test_numbers_of_numpy_become_pythons(kind: Any) -> None:
    found = SamplingParameters(temperature=kind(1), top_p=kind(1), min_p=kind(1))
    assert [type(value) for value in (found.temperature, found.top_p, found.min_p)] == [float] * 3
    assert found == SamplingParameters(temperature=1.0, top_p=1.0, min_p=1.0)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64, int])
def test_whole_numbers_of_numpy_become_pythons(kind: Any) -> None:
    found = SamplingParameters(top_k=kind(5), seed=kind(6), controls=Controls(min_tokens=kind(7), logprobs=kind(8)))
    numbers = (found.top_k, found.seed, found.controls.min_tokens, found.controls.logprobs)
    assert numbers == (5, 6, 7, 8) and {type(number) for number in numbers} == {int}
    largest: Any = np.uint64(MAX_SEED)
    assert SamplingParameters(seed=largest).seed == MAX_SEED


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a number within 0.001"),
        ({"repetition_penalty": -1}, "repetition_penalty must be"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty must be"),
        ({"min_tokens": -1}, "min_tokens must be"),
        ({"logprobs": 21}, r"logprobs must be None or a whole number within 0\.\.20, not 21"),
        ({"logprobs": True}, "logprobs must be"),
    ],
)
def test_ranges_of_controls(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Controls(**rules)


def test_a_logit_bias_is_a_mapping_also_with_ids_of_json() -> None:
    assert biases({"17": 2, np.int64(3): np.float32(-1.5), 5: float("-inf")}) == (
        (3, -1.5),
        (5, float("-inf")),
        (17, 2.0),
    )
    wrongs: list[Any] = [[(1, 2.0)], "1", {"x": 1.0}, {1.5: 1.0}, {-1: 1.0}, {"-1": 1.0}, {1: "2"}, {1: float("nan")},
                         {1: float("inf")}, {True: 1.0}]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(RequestError, match="logit_bias"):
            biases(wrong)


def test_each_request_gets_the_first_program_that_can_do_it() -> None:
    asked: list[tuple[dict[str, Any], AcceptVariant]] = [
        ({}, GREEDY),
        ({"top_p": 0.5}, GREEDY),  # greedy: nothing is drawn
        ({"temperature": 1}, SAMPLING),
        ({"temperature": 1, "min_p": 0.1}, SAMPLING),
        ({"temperature": 1, "top_k": 5}, FILTERED),
        ({"controls": Controls(constrained=True)}, CONSTRAINED),
        ({"controls": Controls(logprobs=0)}, REPORTED),
        ({"controls": Controls(presence_penalty=1)}, EVERYTHING),
        ({"controls": Controls(logit_bias=((1, 2.0),))}, EVERYTHING),
        ({"controls": Controls(min_tokens=3, end_token_ids=frozenset({1}))}, EVERYTHING),
        ({"controls": Controls(min_tokens=3)}, GREEDY),  # no token could end the answer
    ]
    for rules, variant in asked:
        assert SamplingParameters(**rules).variant == variant, rules
    assert cheapest([GREEDY, SAMPLING]) == SAMPLING
    assert cheapest([CONSTRAINED, REPORTED]) == EVERYTHING


def test_the_last_program_covers_all_and_each_is_covered_only_by_later_ones() -> None:
    assert all(EVERYTHING.covers(variant) for variant in ACCEPT_VARIANTS)
    for i, variant in enumerate(ACCEPT_VARIANTS):
        assert not any(earlier.covers(variant) for earlier in ACCEPT_VARIANTS[:i])
    assert not EVERYTHING.covers(REJECTION)
