"""The classical rule: whatever the drafter draws from, tokens follow the target's distribution, row by row."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray

from dflash_engines import contract
from dflash_engines.accept_variant import REJECTION, AcceptVariant
from dflash_export.programs.accept import Accept
from dflash_export.trace import trace

VOCAB, SLOTS, ROWS = 70, 2500, 3
Arrays = dict[str, NDArray[Any]]
Law = NDArray[np.float64]
FILTERED = replace(REJECTION, filters=True)


def softmax(logits: NDArray[np.floating[Any]]) -> Law:
    weight = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(weight / weight.sum(-1, keepdims=True))


def deviation(tokens: NDArray[np.int64], law: Law) -> float:
    """Chi-square over the tokens that should come up five times, in standard deviations; rare ones are one class."""
    count, wanted = np.bincount(tokens, minlength=len(law)), law * len(tokens)
    often = wanted >= 5
    seen, expected = np.append(count[often], count[~often].sum()), np.append(wanted[often], wanted[~often].sum())
    used = expected > 1e-9
    free = used.sum() - 1
    outside = 1e6 * seen[~used].sum()
    return float((((seen - expected)[used] ** 2 / expected[used]).sum() + outside - free) / np.sqrt(2 * free))


class Drafted:
    """Blocks drawn from a drafter's rows q, each row on its own, for a target with rows p."""

    def __init__(self, seed: int, likeness: float) -> None:
        draw = np.random.default_rng(seed)
        self.logits = draw.normal(scale=1.5, size=(ROWS, VOCAB)).astype(np.float32)
        other = draw.normal(scale=1.5, size=(ROWS, VOCAB))
        self.q = softmax(likeness * self.logits + (1 - likeness) * other)
        self.block = np.zeros((SLOTS, ROWS), np.int64)
        for row in range(ROWS - 1):
            self.block[:, row + 1] = draw.choice(VOCAB, SLOTS, p=self.q[row])

    def inputs(self, **rules: Any) -> Arrays:
        defaults = {"seed": np.arange(SLOTS) * 31, "temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0,
                    "start": 5, "forced": 1, "count": ROWS, "limit": 1000}  # fmt: skip
        values: dict[str, Any] = defaults | rules
        arrays: Arrays = {"logits": np.tile(self.logits, (SLOTS, 1, 1)), "block": self.block,
                          "draft_probabilities": np.tile(self.q.astype(np.float32), (SLOTS, 1, 1))}  # fmt: skip
        for binding in contract.accept(contract.weightless(VOCAB), FILTERED).inputs:
            if binding.name not in arrays:
                dtype = np.float32 if binding.dtype == "float32" else np.int64
                arrays[binding.name] = np.broadcast_to(np.array(values[binding.name], dtype), SLOTS).copy()
        return arrays


def ordered(arrays: Arrays, variant: AcceptVariant = FILTERED) -> Arrays:
    return {b.name: arrays[b.name] for b in contract.accept(contract.weightless(VOCAB), variant).inputs}


def run(arrays: Arrays, variant: AcceptVariant = FILTERED) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """sampled [B,R], accepted [B]"""
    out = Accept(variant, 3)(*(torch.from_numpy(value) for value in ordered(arrays, variant).values()))
    return out[0].numpy(), out[1].numpy()


@pytest.mark.parametrize("likeness", [0.0, 0.6, 1.0])
def test_every_row_follows_the_target_whatever_was_drafted(likeness: float) -> None:
    drafted = Drafted(1, likeness)
    sampled, accepted = run(drafted.inputs())
    law = softmax(drafted.logits)
    for row in range(ROWS):
        reached = accepted >= row  # the rows that a pass gets to
        assert abs(deviation(sampled[reached, row], law[row])) < 4.5
    rate = np.minimum(law[0], drafted.q[0]).sum()  # of the first draft, as the papers give it
    assert np.mean(accepted >= 1) == pytest.approx(rate, abs=4 * np.sqrt(max(rate * (1 - rate), 1e-9) / SLOTS) + 1e-9)


@pytest.mark.parametrize(("top_k", "top_p", "temperature"), [(5, 1.0, 1.0), (0, 0.7, 1.3), (0, 1.0, 0.5)])
def test_filters_hold_for_kept_and_drawn_tokens(top_k: int, top_p: float, temperature: float) -> None:
    drafted = Drafted(2, 0.5)
    sampled, _ = run(drafted.inputs(top_k=top_k, top_p=top_p, temperature=temperature))
    law = softmax(drafted.logits[0] / temperature)
    order = np.argsort(-law)
    before = np.cumsum(law[order]) - law[order]
    kept = order[(before < top_p) & (np.arange(VOCAB) < (top_k or VOCAB))]
    filtered = np.zeros(VOCAB)
    filtered[kept] = law[kept] / law[kept].sum()
    assert abs(deviation(sampled[:, 0], filtered)) < 4.5


def test_planted_faults_are_seen() -> None:
    drafted = Drafted(1, 0.3)
    law = softmax(drafted.logits)[0]
    arrays = drafted.inputs()
    arrays["draft_probabilities"][:] = softmax(drafted.logits)  # not what was drawn from: all is kept
    assert deviation(run(arrays)[0][:, 0], law) > 10
    arrays = drafted.inputs()
    arrays["draft_probabilities"][:] = 1 / VOCAB  # not what was drawn from either
    assert deviation(run(arrays)[0][:, 0], law) > 10
    assert deviation(run(drafted.inputs())[0][:, 0], drafted.q[0]) > 10


def test_a_cold_slot_takes_the_likeliest_token() -> None:
    drafted = Drafted(4, 0.5)
    sampled, _ = run(drafted.inputs(temperature=0.0))
    np.testing.assert_array_equal(sampled, np.tile(drafted.logits.argmax(-1), (SLOTS, 1)))


def test_compiled_equals_pytorch() -> None:
    model = trace(Accept(REJECTION, 3), contract.accept(contract.weightless(VOCAB), REJECTION))
    session = ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString())
    arrays = {name: value[:40] for name, value in ordered(Drafted(5, 0.5).inputs(), REJECTION).items()}
    found = session.run(None, arrays)
    wanted = run(arrays, REJECTION)
    for a, b in zip(found, wanted, strict=False):
        np.testing.assert_array_equal(a, b)
