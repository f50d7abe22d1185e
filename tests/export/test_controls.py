"""Controls on the accept program's rows against transformers' processors on the same logits, one row at a time."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dflash_engines import contract
from dflash_engines.accept_inputs import SlotRules, bias
from dflash_engines.accept_variant import EVERYTHING, TOP_LOGPROBS
from dflash_engines.arena import array_dtype, array_shape
from dflash_engines.contract import Dim
from dflash_engines.controls import Controls
from dflash_engines.engine import History
from dflash_engines.errors import EngineError
from dflash_engines.sampling import SamplingParameters
from dflash_export.programs.accept import Accept, positions
from dflash_export.programs.penalties import drafted_before
from tests.reference.reference_controls import ReferenceRules, edited

VOCAB, ROWS, MASK = 90, 6, 3
Arrays = dict[str, NDArray[Any]]
ONE_BY_ONE: dict[str, dict[str, Any]] = {
    "neutral": {},
    "logit_bias": {"logit_bias": {5: 4.0, 17: -100.0, 89: 0.5}},
    "bad_token_ids": {"bad_token_ids": (1, 40, 41)},
    "min_tokens": {"min_tokens": 7, "stop_token_ids": (2, 9)},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "repetition_reward": {"repetition_penalty": 0.7},
    "frequency_penalty": {"frequency_penalty": 0.6},
    "presence_penalty": {"presence_penalty": -0.9},
    "grammar": {"allowed": np.arange(VOCAB) % 4 > 0},
}
ALL = {"all": {name: value for rules in ONE_BY_ONE.values() for name, value in rules.items()}}


class Case:
    """Random logits, a text and a drafted block with repeated tokens."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.logits = draw.normal(scale=3, size=(ROWS, VOCAB)).astype(np.float32)
        self.prompt = draw.integers(0, 30, 9).tolist()
        self.generated = draw.integers(15, 45, 4).tolist()  # some are in the prompt, some come twice
        self.drafted = draw.integers(25, 50, ROWS - 1).tolist()
        self.block = [self.generated[-1], *self.drafted]

    def wanted(self, rules: ReferenceRules) -> NDArray[np.float32]:
        """Row r follows everything up to block[r]."""
        texts = [[*self.generated, *self.drafted[:r]] for r in range(ROWS)]
        return np.stack([edited(self.logits[r], self.prompt, text, rules) for r, text in enumerate(texts)])

    def inputs(self, rules: ReferenceRules) -> Arrays:
        """One slot's inputs of the program that can do all, filled as an engine does."""
        sizes = {Dim.SLOTS: 1, Dim.ROWS_OUT: ROWS}
        declared = contract.accept(contract.weightless(VOCAB), EVERYTHING).inputs
        arrays: Arrays = {b.name: np.zeros(array_shape(b, sizes), array_dtype(b.dtype)) for b in declared}
        arrays["logits"][0], arrays["block"][0] = self.logits, self.block
        arrays["start"][0] = len(self.prompt) + len(self.generated) - 1
        arrays["forced"][0], arrays["count"][0], arrays["limit"][0] = 1, ROWS, 1000
        history = History(tokens=self.prompt + self.generated, prompt_length=len(self.prompt))
        mask = None if rules.allowed is None else packed(np.tile(rules.allowed, (ROWS, 1)))
        SlotRules(parameters(rules), history).fill(arrays, 0, mask)
        return arrays


def packed(allowed: NDArray[np.bool_]) -> NDArray[np.int32]:
    padded = np.pad(allowed, ((0, 0), (0, -allowed.shape[1] % 32)))
    return np.packbits(padded, axis=-1, bitorder="little").view(np.int32)


def parameters(rules: ReferenceRules) -> SamplingParameters:
    fields = asdict(rules) | {"logit_bias": tuple(rules.logit_bias.items())}
    fields["bad_token_ids"], fields["end_token_ids"] = frozenset(rules.bad_token_ids), frozenset(rules.stop_token_ids)
    fields["constrained"] = rules.allowed is not None
    return SamplingParameters(
        controls=Controls(**{k: v for k, v in fields.items() if k not in ("allowed", "stop_token_ids")})
    )


def run(arrays: Arrays) -> tuple[torch.Tensor, ...]:
    out: tuple[torch.Tensor, ...] = Accept(EVERYTHING, MASK)(*(torch.from_numpy(value) for value in arrays.values()))
    return out


def found(arrays: Arrays) -> NDArray[np.float32]:
    """The edited logits of the slot."""
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    position = positions(tensors["start"], tensors["block"])
    rows: NDArray[np.float32] = (
        Accept(EVERYTHING, MASK).edited(tensors["logits"], tensors["block"], position, tensors)[0].numpy()
    )
    return rows


@pytest.mark.parametrize("name", [*ONE_BY_ONE, "all"])
def test_every_row_has_the_references_logits_and_token(name: str) -> None:
    rules = ReferenceRules(**(ONE_BY_ONE | ALL)[name])
    for seed in range(12):
        case = Case(seed)
        arrays, wanted = case.inputs(rules), case.wanted(rules)
        np.testing.assert_allclose(found(arrays), wanted, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(run(arrays)[0][0], wanted.argmax(-1))


@pytest.mark.parametrize("name", [name for name in ONE_BY_ONE if name != "neutral"])
def test_the_comparison_sees_a_rule_that_is_left_out(name: str) -> None:
    case, rules = Case(0), ReferenceRules(**ONE_BY_ONE[name])
    assert not np.allclose(found(case.inputs(ReferenceRules())), case.wanted(rules))


def test_penalties_see_the_drafted_prefix_and_nothing_behind_it() -> None:
    """A history that ended with the anchor would give another answer."""
    case, rules = Case(3), ReferenceRules(frequency_penalty=2.0)
    stale = np.stack([edited(row, case.prompt, case.generated, rules) for row in case.logits])
    rows = found(case.inputs(rules))
    np.testing.assert_allclose(rows[0], stale[0], rtol=1e-6)
    assert all(not np.allclose(rows[r], stale[r]) for r in range(1, ROWS))
    future = np.stack([edited(row, case.prompt, [*case.generated, *case.drafted], rules) for row in case.logits])
    assert not np.allclose(rows[1], future[1])


def test_counts_of_the_block_by_hand() -> None:
    count = drafted_before(torch.tensor([[4, 7, 4, 4]]))[0]
    assert count.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1], [2, 1, 2, 2]]


def test_neutral_rules_change_no_bit() -> None:
    for seed in range(5):
        case = Case(seed)
        np.testing.assert_array_equal(found(case.inputs(ReferenceRules())), case.logits)


def test_committed_tokens_are_counted_as_a_new_history_would() -> None:
    case, rules = Case(1), ReferenceRules(frequency_penalty=0.5, repetition_penalty=1.2)
    history = History(tokens=case.prompt + case.generated, prompt_length=len(case.prompt))
    kept = SlotRules(parameters(rules), history)
    kept.fill(case.inputs(rules), 0, None)
    kept.commit(case.drafted[:3])
    case.generated += case.drafted[:3]
    fresh, later = case.inputs(rules), case.inputs(rules)
    kept.fill(later, 0, None)
    np.testing.assert_array_equal(later["generated"], fresh["generated"])
    np.testing.assert_array_equal(later["in_prompt"], fresh["in_prompt"])


def test_a_rule_about_the_text_needs_the_text() -> None:
    for rules in (ReferenceRules(presence_penalty=1.0), ReferenceRules(min_tokens=2, stop_token_ids=(1,))):
        with pytest.raises(EngineError, match="give its history"):
            SlotRules(parameters(rules))


def test_bias_holds_banned_and_late_tokens() -> None:
    rows = bias(
        Controls(logit_bias=((3, 2.0),), bad_token_ids=frozenset({4}), min_tokens=1, end_token_ids=frozenset({5})), 7
    )
    inf = math.inf
    assert rows.tolist() == [[0, 0, 0, 2, -inf, -inf, 0], [0, 0, 0, 2, -inf, 0, 0]]


def test_log_probabilities_are_the_targets_own_whatever_the_rules() -> None:
    case = Case(2)
    out = run(case.inputs(ReferenceRules(**ALL["all"])))
    exact = case.logits.astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1, keepdims=True)) + exact.max(-1, keepdims=True)
    sampled, logprob, tokens, logprobs = (out[i][0].numpy() for i in (0, -3, -2, -1))
    np.testing.assert_allclose(logprob, exact[np.arange(ROWS), sampled], rtol=1e-5, atol=1e-5)
    order = np.argsort(-exact, axis=-1)[:, :TOP_LOGPROBS]
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_allclose(logprobs, np.take_along_axis(exact, order, -1), rtol=1e-5, atol=1e-5)
