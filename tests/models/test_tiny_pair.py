"""The trained tiny pair is what end-to-end tests need: small, right, quick to accept and sometimes not."""

import json
from itertools import islice

import pytest

from tests.models.tiny_pair import (
    DRAFTER,
    FOLDER,
    TinyPair,
    held_back_questions,
    load_tiny_pair,
    mean_acceptance_length,
)
from tests.reference.reference_loop import ReferenceResult, plain_greedy
from tiny_pair.conversations import conversations, prompts
from tiny_pair.tokenizer import MASK_TOKEN_ID, encode_conversation, render

MOST_BYTES = 5_000_000
NUM_QUESTIONS = 16


@pytest.fixture(scope="module")
def pair() -> TinyPair:
    return load_tiny_pair()


@pytest.fixture(scope="module")
def results(pair: TinyPair) -> list[ReferenceResult]:
    return [pair.answer(question) for question in held_back_questions()[:NUM_QUESTIONS]]


def test_fits_the_repository() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= MOST_BYTES


def test_acceptance_is_long_and_sometimes_short(results: list[ReferenceResult]) -> None:
    lengths = {length for result in results for length in result.acceptance_lengths}
    assert mean_acceptance_length(results) >= 3.0
    assert {1, 2, 8} <= lengths


def test_speculation_changes_nothing(pair: TinyPair, results: list[ReferenceResult]) -> None:
    for question, result in zip(held_back_questions()[:4], results, strict=False):
        assert plain_greedy(pair.target, pair.encode(question), 160, pair.stop_ids) == result.token_ids


def test_answers_end_by_themselves_and_without_mask_tokens(pair: TinyPair, results: list[ReferenceResult]) -> None:
    for result in results:
        assert result.token_ids[-1] in pair.stop_ids
        assert MASK_TOKEN_ID not in result.token_ids
    assert pair.drafter.mask_token_id == MASK_TOKEN_ID


def test_some_characters_span_tokens(pair: TinyPair, results: list[ReferenceResult]) -> None:
    pieces = [pair.tokenizer.decode([token]) for result in results for token in result.token_ids]
    whole = "".join(str(pair.tokenizer.decode(result.token_ids)) for result in results)
    assert any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert "\N{REPLACEMENT CHARACTER}" not in whole


def test_most_answers_are_right(pair: TinyPair) -> None:
    checked = [turns for turns in islice(conversations("answers"), 60) if turns[0].role == "user"][:20]
    right = 0
    for question, answer, *_ in checked:
        written = pair.tokenizer.decode(pair.answer(question.content).token_ids, skip_special_tokens=True)
        right += written == answer.content
    assert right >= 0.5 * len(checked)


def test_training_text_is_what_the_chat_template_writes(pair: TinyPair) -> None:
    for turns in islice(conversations("template"), 20):
        ids, written = encode_conversation(pair.tokenizer, turns)
        assert ids == pair.tokenizer.encode(render(pair.tokenizer, turns), add_special_tokens=False)
        answers = [turn.content for turn in turns if turn.role == "assistant"]
        scored = [token for token, by_assistant in zip(ids, written, strict=True) if by_assistant]
        assert pair.tokenizer.decode(scored, skip_special_tokens=True) == "".join(answers)


def test_same_seed_same_questions_and_held_back_ones_apart() -> None:
    learned = prompts("drafter", 200)
    assert learned == prompts("drafter", 200) != prompts("measure", 200)
    assert not set(prompts("measure", 50, without=set(learned))) & set(learned)


def test_drafter_says_what_it_is() -> None:
    config = json.loads((DRAFTER / "config.json").read_text())
    assert config["block_size"] == 8 and config["num_hidden_layers"] == 2
