"""Sampling in PyTorch and compiled: the filters against sorting in numpy, the law by chi-square, ties and edges."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dflash_engines import contract
from dflash_engines.contract import FILTERED, SAMPLING, AcceptVariant
from dflash_engines.sampling import MAX_SEED
from dflash_export.programs import accept, filters, sampling
from dflash_export.trace import trace

VOCAB = 1030  # not a multiple of a group, nor of the padding
Arrays = dict[str, NDArray[Any]]


def call(logits: NDArray[np.float32], **rules: Any) -> Arrays:
    """Inputs for logits [B,R,V]; a rule is one value for all slots or a list of one each."""
    slots, rows, _ = logits.shape
    defaults: dict[str, Any] = {"seed": 7, "temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, "start": 0}
    types = {"temperature": np.float32, "min_p": np.float32, "top_p": np.float32}
    given_: Arrays = {name: np.broadcast_to(np.array(value, types.get(name, np.int64)), slots).copy()
              for name, value in (defaults | rules).items()}  # fmt: skip
    whole: Arrays = {"logits": logits, "block": np.zeros((slots, rows), np.int64), "forced": np.ones(slots, np.int64),
             "count": np.full(slots, rows), "limit": np.full(slots, 10**6)}  # fmt: skip
    return whole | given_


def used(variant: AcceptVariant, inputs: Arrays) -> Arrays:
    return {b.name: inputs[b.name] for b in contract.accept(contract.weightless(VOCAB), variant).inputs}


def sampled(variant: AcceptVariant, inputs: Arrays) -> NDArray[np.int64]:
    module = accept.variants(3)[variant]
    out: NDArray[np.int64] = module(*(torch.from_numpy(v) for v in used(variant, inputs).values()))[0].numpy()
    return out


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[AcceptVariant], ort.InferenceSession]:
    made: dict[AcceptVariant, ort.InferenceSession] = {}

    def get(variant: AcceptVariant) -> ort.InferenceSession:
        if variant not in made:
            path = tmp_path_factory.mktemp("accept") / "accept.onnx"
            model = trace(accept.variants(3)[variant], contract.accept(contract.weightless(VOCAB), variant))
            ir.save(model, path)
            made[variant] = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        return made[variant]

    return get


def transformers_keeps(logits: NDArray[np.float32], temperature: float, k: int, p: float, min_p: float) -> NDArray[Any]:
    """Which of logits [N,V] its warpers leave."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    warpers += [TopKLogitsWarper(k)] if k else []
    warpers += [TopPLogitsWarper(p)] if p < 1 else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    history = torch.LongTensor([[0]] * len(logits))
    scores: torch.Tensor = warpers(history, torch.FloatTensor(logits))
    return torch.isfinite(scores).numpy()


def weights_left(logits: NDArray[np.float32], temperature: float, k: int, p: float, min_p: float) -> torch.Tensor:
    weight = sampling.weights(torch.from_numpy(logits)[None], torch.tensor([temperature]))
    weight = filters.filtered(
        weight, torch.tensor([k]), torch.tensor([p]), torch.ones(weight.shape[:2], dtype=torch.bool)
    )
    return sampling.above(weight, torch.tensor([min_p])[:, None, None])[0, :, : logits.shape[-1]]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("filters", [(5, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.3, 0.0), (0, 1.0, 0.1), (40, 0.8, 0.05),
                                     (700, 0.99, 0.0), (1, 1.0, 0.0), (5000, 1.0, 0.0)])  # fmt: skip
def test_filters_keep_what_transformers_keeps(temperature: float, filters: tuple[int, float, float]) -> None:
    logits = np.random.default_rng(5).normal(scale=3, size=(8, VOCAB)).astype(np.float32)
    left = weights_left(logits, temperature, *filters).numpy() > 0
    drawable = (logits - logits.max(-1, keepdims=True)) / temperature > np.log(2.0**-63)
    np.testing.assert_array_equal(left, transformers_keeps(logits, temperature, *filters) & drawable)


@given(st.lists(st.sampled_from([-40.0, -2.0, 0.0, 1.0, 1.0000001, 3.5]), min_size=3, max_size=40), st.integers(1, 41))
def test_equal_tokens_stay_together_in_top_k(values: list[float], k: int) -> None:
    logits = np.array([values], np.float32)
    left = weights_left(logits, 1.0, k, 1.0, 0.0)[0].numpy() > 0
    weight = torch.exp(torch.from_numpy(logits[0] - logits.max())).numpy()
    kth = np.sort(weight)[::-1][min(k, len(values)) - 1]
    np.testing.assert_array_equal(left, weight >= kth)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.999), st.sampled_from([1, 20, 300]))
@settings(max_examples=50, deadline=None)
def test_top_p_keeps_the_smallest_set_that_is_enough(seed: int, p: float, candidates: int) -> None:
    """With ties; nothing of another size would do, whether the threshold is a candidate or has to be searched."""
    weight = np.random.default_rng(seed).integers(1, 60, 300).astype(np.float32) / 64
    weight[0] = 1
    weights = torch.from_numpy(weight)[None, None]
    best = torch.topk(weights, candidates).values
    threshold = filters.top_p_threshold(weights, best, torch.tensor([p]), torch.tensor(False)).item()
    wanted = np.float32(p) * weight.sum()
    assert threshold in weight
    assert weight[weight >= threshold].sum() >= wanted > weight[weight > threshold].sum()


def chi_square(found: NDArray[np.int64], probability: NDArray[np.float64]) -> float:
    """In standard deviations, over the tokens that should come up."""
    likely = probability * found.sum() >= 5
    count = np.bincount(found.ravel(), minlength=len(probability))
    seen, wanted = count[likely], probability[likely] * found.size
    rest = max(1 - probability[likely].sum(), 1e-12) * found.size
    value = ((seen - wanted) ** 2 / wanted).sum()
    if rest >= 5:
        value += (found.size - seen.sum() - rest) ** 2 / rest
    free = likely.sum() - (rest < 5)
    return float((value - free) / np.sqrt(2 * max(free, 1)))


def law(logits: NDArray[np.float32], temperature: float, k: int, p: float, min_p: float) -> NDArray[np.float64]:
    scores = logits.astype(np.float64) / temperature
    weight = np.exp(scores - scores.max()) * transformers_keeps(logits[None], temperature, k, p, min_p)[0]
    return np.asarray(weight / weight.sum())


LAWS = [(1.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.02), (1.0, 6, 1.0, 0.0), (1.4, 0, 0.9, 0.0), (1.0, 300, 0.95, 0.001)]


def many(logits: NDArray[np.float32], rule: tuple[float, int, float, float], count: int) -> NDArray[np.int64]:
    """Tokens drawn at `count` positions in 20 slots of as many seeds."""
    temperature, k, p, min_p = rule
    rows = np.broadcast_to(logits, (20, count // 20, len(logits))).copy()
    inputs = call(rows, seed=np.arange(20) * 977, temperature=temperature, top_k=k, top_p=p, min_p=min_p)
    return sampled(FILTERED if (k or p < 1) else SAMPLING, inputs)


@pytest.mark.parametrize("rule", LAWS)
def test_tokens_follow_the_softmax(rule: tuple[float, int, float, float]) -> None:
    logits = np.random.default_rng(1).normal(scale=2, size=400).astype(np.float32)
    found = many(logits, rule, 8000)
    assert abs(chi_square(found, law(logits, *rule))) < 4.5
    biased = logits.copy()
    biased[law(logits, *rule).argmax()] += 1.0  # the planted fault
    assert chi_square(many(biased, rule, 8000), law(logits, *rule)) > 10


@pytest.mark.parametrize("variant", [SAMPLING, FILTERED])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_compiled_sampling_equals_pytorch(
    compiled: Callable[[AcceptVariant], ort.InferenceSession], variant: AcceptVariant, rows: int
) -> None:
    logits = np.random.default_rng(rows).normal(scale=3, size=(3, rows, VOCAB)).astype(np.float32)
    inputs = call(logits, seed=[0, 5, MAX_SEED], temperature=[0.0, 0.8, 1.3], top_k=[0, 30, 0],
                  top_p=[0.5, 1.0, 0.9], min_p=[0.1, 0.0, 0.01], start=[0, 17, 90000])  # fmt: skip
    found = compiled(variant).run(None, used(variant, inputs))
    wanted = accept.variants(3)[variant](*(torch.from_numpy(v) for v in used(variant, inputs).values()))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_a_rows_token_depends_on_nothing_but_its_own_logits_seed_and_position(
    compiled: Callable[[AcceptVariant], ort.InferenceSession],
) -> None:
    """Not on the block, the row, the slot, its company, or the variant that the company needs."""
    logits = np.random.default_rng(3).normal(scale=2, size=(4, 16, VOCAB)).astype(np.float32)
    seeds, temperature = [1, 2, 3, 4], [1.0, 0.6, 0.0, 2.0]
    whole = compiled(FILTERED).run(None, used(FILTERED, call(logits, seed=seeds, temperature=temperature)))[0]
    for rows in (1, 2, 3, 5, 16):
        for slot in range(4):
            for start in range(0, 16 - rows + 1, rows):
                alone = call(logits[slot : slot + 1, start : start + rows].copy(), seed=seeds[slot],
                             temperature=temperature[slot], start=start)  # fmt: skip
                found = compiled(SAMPLING).run(None, used(SAMPLING, alone))[0]
                np.testing.assert_array_equal(found[0], whole[slot, start : start + rows])


def test_a_cold_slot_takes_the_first_of_the_best() -> None:
    logits = np.zeros((2, 3, VOCAB), np.float32)
    logits[:, 0, [900, 70, 65]] = 4.0  # 65 and 70 share a group, whose sum is twice that of 900's
    logits[:, 1, [1000, 3]] = 1e-3
    logits[:, 2] = np.random.default_rng(0).normal(size=VOCAB) * 1e-6
    found = sampled(SAMPLING, call(logits, temperature=[0.0, 9e-6]))
    np.testing.assert_array_equal(found, logits.argmax(-1))


def test_a_banned_token_is_never_drawn() -> None:
    logits = np.zeros((4, 50, 64), np.float32)
    logits[..., 10:] = -np.inf
    assert sampled(SAMPLING, call(logits, temperature=2.0)).max() < 10
