"""Many answers to one text: their tokens follow the law of transformers, with and without the drafter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dflash_engines.backend import Options
from dflash_engines.engine import Iteration
from dflash_engines.host_engine import HostEngine
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_engines.sampling import SamplingParameters
from dflash_runtime.loop import DecodeLoop, Progress
from dflash_runtime.request import Request
from tests.demo.conftest import TinyBundle
from tests.models.tiny_pair import load_tiny_pair

TEXT = "Write this as JSON: "  # what is asked for may be anybody and anything
SLOTS, BLOCK, NEW_TOKENS = 32, 4, 3
ANSWERS, BIASED = 384, 192
OFTEN, FEWEST = 5, 20  # times that a token is expected for a class of its own, answers that a prefix must have
FAR, NEAR = 10, 4.5  # standard deviations
RULES = {
    "all tokens": SamplingParameters(temperature=1.0),
    "top_k": SamplingParameters(temperature=1.3, top_k=6),
    "top_p": SamplingParameters(temperature=1.0, top_p=0.7),
    "filters together": SamplingParameters(temperature=1.5, top_k=20, top_p=0.9, min_p=0.01),
}
OFF = {
    "all tokens": replace(RULES["all tokens"], temperature=1.3),
    "top_k": replace(RULES["top_k"], top_k=7),
    "top_p": replace(RULES["top_p"], top_p=0.75),
    "filters together": replace(RULES["filters together"], top_p=0.95),
}
Answers = NDArray[np.int64]  # [N, NEW_TOKENS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """How blocks are drafted; 1 is plain decoding."""

    block_size: int
    temperature: float = 0.0


DRAFTS = {
    "plain": Drafts(block_size=1),
    "likeliest": Drafts(block_size=BLOCK),
    "drawn": Drafts(block_size=BLOCK, temperature=1.0),
}


@pytest.fixture(scope="module")
def text() -> tuple[int, ...]:
    return tuple(load_tiny_pair().tokenizer.encode(TEXT, add_special_tokens=False))


@pytest.fixture(scope="module")
def engine(tiny_bundle: TinyBundle) -> HostEngine:
    bundle = tiny_bundle("fp32")
    limits = replace(bundle.manifest.limits, max_batch=SLOTS, max_len=64)
    return HostEngine(bundle, OnnxRuntimePrograms(bundle, Options(threads=1)), limits)


def drawn(
    engine: HostEngine, text: Sequence[int], rules: SamplingParameters, drafts: Drafts, seeds: range
) -> tuple[Answers, NDArray[np.int64]]:
    """The answer to each seed, and how many of its tokens were drafted."""
    loop, answers = DecodeLoop(engine), np.zeros((len(seeds), NEW_TOKENS), np.int64)
    kept = np.zeros(len(seeds), np.int64)
    for begin in range(0, len(seeds), SLOTS):
        found: list[list[int]] = [[] for _ in range(SLOTS)]
        for slot in range(SLOTS):
            sampling = replace(rules, seed=seeds[begin + slot], draft_temperature=drafts.temperature)
            loop.admit(slot, Request(tokens=tuple(text), max_new_tokens=NEW_TOKENS, stop_token_ids=frozenset(),
                                     block_size=drafts.block_size, sampling=sampling))  # fmt: skip
        while any(slot.request is not None for slot in loop.slots):
            for event in loop.prefill() or loop.decode():
                assert isinstance(event, Progress)
                found[event.slot] += event.token_ids
                kept[begin + event.slot] += event.accepted
        answers[begin : begin + SLOTS] = found
    return answers, kept


@torch.no_grad()
def laws(model: PreTrainedModel, prefixes: Sequence[Sequence[int]], rules: SamplingParameters) -> NDArray[np.float64]:
    """[N, V] of the token after each of N prefixes of one length."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(rules.temperature)])
    warpers += [TopKLogitsWarper(rules.top_k)] if rules.top_k else []
    warpers += [TopPLogitsWarper(rules.top_p)] if rules.top_p < 1 else []
    warpers += [MinPLogitsWarper(rules.min_p)] if rules.min_p else []
    ids = torch.LongTensor(prefixes)
    scores: torch.Tensor = warpers(ids, model(ids).logits[:, -1])
    return np.asarray(scores.double().softmax(-1).numpy())


def deviation(answers: Answers, text: Sequence[int], rules: SamplingParameters) -> float:
    """Chi-square of each token given those before it, summed, in standard deviations.

    A token that should hardly come up shares a class with others like it; one that can't is infinitely far off.
    """
    model, value, free = load_tiny_pair().target, 0.0, 0
    for depth in range(NEW_TOKENS):
        prefixes, which, count = np.unique(answers[:, :depth], axis=0, return_inverse=True, return_counts=True)
        usual = np.flatnonzero(count >= FEWEST)
        if not len(usual):
            continue
        found = laws(model, [[*text, *prefixes[i]] for i in usual], rules)
        for prefix, law in zip(usual, found, strict=True):
            seen = np.bincount(answers[which.ravel() == prefix, depth], minlength=len(law))
            if seen[law == 0].any():
                return float("inf")
            often = law * count[prefix] >= OFTEN
            seen = np.append(seen[often], seen[~often].sum())
            wanted = np.append(law[often], law[~often].sum()) * count[prefix]
            used = wanted > OFTEN / 10
            value += float(((seen - wanted)[used] ** 2 / wanted[used]).sum())
            free += int(used.sum()) - 1
    return (value - free) / float(np.sqrt(2 * free))


def seeds(name: str, drafts: str, count: int) -> range:
    """Every case has its own."""
    first = 10**6 * list(RULES).index(name) + 10**5 * list(DRAFTS).index(drafts)
    return range(first, first + count)


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("name", RULES)
def test_tokens_follow_the_law_of_transformers(
    engine: HostEngine, text: tuple[int, ...], name: str, drafts: str
) -> None:
    answers, kept = drawn(engine, text, RULES[name], DRAFTS[drafts], seeds(name, drafts, ANSWERS))
    assert abs(deviation(answers, text, RULES[name])) < NEAR
    if drafts != "plain":
        assert 0.1 * ANSWERS < (kept > 0).sum() < 0.9 * ANSWERS  # drafts are kept, and refused


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_off_is_seen(engine: HostEngine, text: tuple[int, ...], name: str) -> None:
    """The planted bias of plain decoding."""
    answers, _ = drawn(engine, text, OFF[name], DRAFTS["plain"], seeds(name, "plain", BIASED))
    assert deviation(answers, text, RULES[name]) > FAR


@pytest.mark.parametrize("drafts", ["likeliest", "drawn"])
@pytest.mark.parametrize("name", RULES)
def test_drafts_that_are_kept_too_often_are_seen(
    engine: HostEngine, text: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, name: str, drafts: str
) -> None:
    """The planted bias of an acceptance that is too mild: every second draft that the target refuses is kept."""
    collect = engine.collect

    def mild() -> Iteration:
        found = collect()
        kept = (found.accepted == 0) & (np.arange(len(found.accepted)) % 2 == 0)
        found.sampled[kept, 0] = found.block[kept, 1]
        return found

    monkeypatch.setattr(engine, "collect", mild)
    answers, _ = drawn(engine, text, RULES[name], DRAFTS[drafts], seeds(name, drafts, BIASED))
    assert deviation(answers, text, RULES[name]) > FAR
