"""Masks by row: a grammar that depends on the prefix is obeyed on every token, drafted or not, and changes no bit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.controls import Controls
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import HostEngine
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_engines.sampling import LIKELIEST, SamplingParameters
from tests.export.conftest import ExportPair
from tests.export.pairs import FAMILY_CASES

PROMPT, NEW = [5, 6, 7], 40
GREEDY = replace(LIKELIEST, controls=Controls(constrained=True))
SAMPLED = SamplingParameters(temperature=1.0, seed=3, controls=Controls(constrained=True))
FILTERED = replace(SAMPLED, top_p=0.9)
Masks = NDArray[np.int32]


def allowed(text: list[int], vocab_size: int) -> NDArray[np.bool_]:
    """The grammar: which half of the vocabulary may come depends on the whole text."""
    return np.random.default_rng(text).random(vocab_size) < 0.5


def packed(rows: NDArray[np.bool_]) -> Masks:
    """[K, V] to [K, W], by hand."""
    words = np.zeros((len(rows), -(-rows.shape[1] // 32)), np.uint32)
    for row, token in np.argwhere(rows):
        words[row, token // 32] |= np.uint32(1 << (token % 32))
    return words.view(np.int32)


@pytest.fixture(scope="module")
def bundle(export_pair: ExportPair) -> Bundle:
    return export_pair(FAMILY_CASES[0])[2]


@pytest.fixture(scope="module")
def programs(bundle: Bundle) -> OnnxRuntimePrograms:
    return OnnxRuntimePrograms(bundle, Options())


@pytest.fixture
def engine(bundle: Bundle, programs: OnnxRuntimePrograms) -> Iterator[HostEngine]:
    engine = HostEngine(bundle, programs, replace(bundle.manifest.limits, max_batch=2))
    yield engine
    engine.discard()


def masks(engine: HostEngine, text: list[int], block: list[int]) -> Masks:
    """One row for each token of a block whose anchor is the text's last."""
    vocab_size = engine.bundle.manifest.geometry.vocab_size
    return packed(np.stack([allowed(text + block[1 : j + 1], vocab_size) for j in range(len(block))]))


def generate(engine: HostEngine, slot: int, rules: SamplingParameters, size: int) -> list[int]:
    """The whole answer, alone on the engine."""
    text = list(PROMPT)
    found = engine.finish_prefill(slot, text, 0, rules, mask=masks(engine, text, text[-1:]))
    text.append(int(found.sampled[0, 0]))
    engine.place(slot, text[-1], len(PROMPT), engine.limits.max_len, rules)
    while len(text) < len(PROMPT) + NEW:
        block = engine.begin(size)[slot].tolist()
        engine.accept({slot: masks(engine, text, block)})
        found = engine.collect()
        text += found.sampled[slot, : found.accepted[slot] + 1].tolist()
    engine.park(slot)
    return text[len(PROMPT) :][:NEW]


@pytest.mark.parametrize("rules", [GREEDY, SAMPLED, FILTERED], ids=["greedy", "sampled", "filtered"])
def test_the_grammar_holds_for_every_token_and_the_drafter_changes_none(
    engine: HostEngine, rules: SamplingParameters
) -> None:
    plain = generate(engine, 0, rules, 1)
    vocab_size = engine.bundle.manifest.geometry.vocab_size
    for i, token in enumerate(plain):
        assert allowed(PROMPT + plain[:i], vocab_size)[token]
    for size in (2, 5, 8):
        assert generate(engine, 1, rules, size) == plain


def test_a_free_slot_is_the_same_beside_a_constrained_one(engine: HostEngine) -> None:
    def free(company: bool) -> list[int]:
        anchor = int(engine.finish_prefill(0, PROMPT, 0).sampled[0, 0])
        engine.place(0, anchor, len(PROMPT), engine.limits.max_len)
        if company:
            first = engine.finish_prefill(1, PROMPT, 0, GREEDY, mask=masks(engine, PROMPT, [0])).sampled[0, 0]
            engine.place(1, int(first), len(PROMPT), engine.limits.max_len, GREEDY)
        tokens = [anchor]
        for _ in range(5):
            engine.begin(8)
            engine.accept({1: np.full((8, engine.bundle.manifest.geometry.mask_words), 5, np.int32)} if company else {})
            found = engine.collect()
            tokens += found.sampled[0, : found.accepted[0] + 1].tolist()
        return tokens

    assert free(company=False) == free(company=True)


def test_a_row_whose_every_token_is_forbidden_says_so(engine: HostEngine) -> None:
    words = engine.bundle.manifest.geometry.mask_words
    for rules in (GREEDY, SAMPLED, FILTERED):
        found = engine.finish_prefill(0, PROMPT, 0, rules, mask=np.zeros((1, words), np.int32))
        assert (found.sampled[0, 0], found.finite[0]) == (-1, True)


def test_a_missing_a_needless_and_a_misshapen_mask_are_errors(engine: HostEngine) -> None:
    words = engine.bundle.manifest.geometry.mask_words
    with pytest.raises(EngineError, match=r"slots \[0\] are constrained, masks came for \[\]"):
        engine.finish_prefill(0, PROMPT, 0, GREEDY)
    engine.place(0, 5, 3, engine.limits.max_len, GREEDY)
    with pytest.raises(EngineError, match="are constrained"):
        engine.launch(4)
    engine.begin(4)
    wrongs: list[dict[int, Any]] = [
        {},
        {1: np.ones((4, words), np.int32)},
        {0: np.ones((3, words), np.int32)},
        {0: np.ones((4, words), np.int64)},
    ]
    for wrong in wrongs:
        with pytest.raises(EngineError, match="mask"):
            engine.accept(wrong)
    engine.accept({0: np.full((4, words), -1, np.int32)})
    assert engine.collect().sampled.min() >= 0


def test_while_a_pass_runs_nothing_else_may_begin(engine: HostEngine) -> None:
    engine.place(0, 5, 3, engine.limits.max_len)
    engine.begin(4)
    assert not engine.can_launch
    for misuse in (lambda: engine.begin(4), lambda: engine.launch(4), lambda: engine.park(0), lambda: engine.clear(0),
                   lambda: engine.prefill(1, PROMPT, 0)):  # fmt: skip
        with pytest.raises(EngineError, match="accept or discard it first"):
            misuse()
    engine.discard()
    with pytest.raises(EngineError, match="nothing was begun"):
        engine.accept({})
    engine.place(0, 5, 3, engine.limits.max_len)
    engine.launch(4)
