"""The trained tiny pair through the product: meaningful text, long and short acceptances, in seconds."""

import json
import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dflash_engines.accept_inputs import SlotRules
from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_runtime.answer_text import AnswerText
from dflash_runtime.block_size import BlockSizes
from dflash_runtime.cli import generate, report
from dflash_runtime.completion import Step
from dflash_runtime.cost_table import CostTable
from dflash_runtime.decoder import TOKENIZER_FILE, Decoder
from dflash_runtime.loop import Progress
from dflash_runtime.prompt import Prompt
from dflash_runtime.structured.grammars import LlguidanceConstraint
from tests.demo import random_requests
from tests.demo.conftest import TinyBundle
from tests.demo.lossless import Written, assert_transformers_agrees, write
from tests.models.tiny_pair import TARGET, held_back_questions

QUESTIONS = 16
NEW_TOKENS = 160
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@pytest.fixture(scope="module", params=PRECISIONS)
def bundle(request: pytest.FixtureRequest, tiny_bundle: TinyBundle) -> Bundle:
    return tiny_bundle(request.param)


@pytest.fixture(scope="module")
def decoder(bundle: Bundle) -> Decoder:
    return Decoder.load(bundle.path)


@pytest.fixture(scope="module")
def fp32(tiny_bundle: TinyBundle) -> Decoder:
    """For what has nothing to do with number formats."""
    return Decoder.load(tiny_bundle("fp32").path)


@pytest.fixture(scope="module")
def written(decoder: Decoder) -> list[Written]:
    """Plain decoding's answers, and those of every block size, which are the same."""
    prompts: list[Prompt] = [[{"role": "user", "content": q}] for q in held_back_questions()[:QUESTIONS]]
    return write(decoder, prompts, NEW_TOKENS, block_sizes=(2, 3, 5, 8))


def test_every_block_size_writes_what_plain_decoding_writes(written: list[Written]) -> None:
    assert sum(found.finish_reason == "stop" for _, found in written) > QUESTIONS // 2
    assert any(ord(character) > 0x2000 for _, found in written for character in found.text)


def test_fp32_answers_are_those_of_transformers(bundle: Bundle, decoder: Decoder, written: list[Written]) -> None:
    if bundle.manifest.precision == "fp32":
        assert_transformers_agrees(decoder, Path(TARGET), written)


def test_acceptance_is_long_and_sometimes_short(decoder: Decoder, written: list[Written]) -> None:
    lengths = [
        length
        for prompt, _ in written
        for length in decoder.complete(prompt, max_new_tokens=NEW_TOKENS, block_size=8).acceptance_lengths
    ]
    assert sum(lengths) / len(lengths) >= 3
    assert {1, 8} <= set(lengths)


class Erratic(BlockSizes):
    """Any size for each pass, by chance."""

    def __init__(self, seed: int) -> None:
        times = ((tuple(1.0 for _ in range(8)),),)
        super().__init__(
            CostTable(slots=(1,), lengths=(1,), block_sizes=tuple(range(1, 9)), draft=times, target=times, accept=times)
        )
        self.random = random.Random(seed)

    def choose(self, *_given: object, **_named: object) -> int:
        return self.random.randint(1, 8)


@given(
    question=st.sampled_from(held_back_questions()),
    rules=st.fixed_dictionaries({
        "temperature": st.sampled_from([0.0, 0.6, 1.0]), "top_k": st.sampled_from([0, 0, 8]), "seed": st.integers(0, 99)
    }),
    drawn=st.sampled_from([0.0, 0.6, 1.2]),
    steps=st.integers(1, 9),
    sizes=st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_way_of_drafting_changes_a_token(
    decoder: Decoder,
    monkeypatch: pytest.MonkeyPatch,
    question: str,
    rules: dict[str, Any],
    drawn: float,
    steps: int,
    sizes: int,
) -> None:
    asked: dict[str, Any] = {"prompt": [{"role": "user", "content": question}], "max_new_tokens": 48, **rules}
    plain = decoder.complete(block_size=1, **asked)
    monkeypatch.setattr(decoder._loop, "_block_sizes", Erratic(sizes))
    noise = drawn if "draft_noise" in decoder.engine.bundle.manifest.programs else 0.0
    found = decoder.complete(draft_temperature=noise, denoise_steps=steps, **asked)
    assert (found.token_ids, found.text, found.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)


def test_the_default_is_never_far_from_the_best_block_size(decoder: Decoder) -> None:
    """This drafter is good: blocks are long, whatever this machine makes of their costs."""
    found = [
        decoder.complete([{"role": "user", "content": question}], max_new_tokens=NEW_TOKENS)
        for question in held_back_questions()[:QUESTIONS]
    ]
    lengths = [length for completion in found for length in completion.acceptance_lengths]
    assert sum(lengths) / len(lengths) > 2


def test_a_drafter_that_draws_at_next_to_no_temperature_takes_the_likeliest(decoder: Decoder) -> None:
    if "draft_noise" not in decoder.engine.bundle.manifest.programs:
        return
    for question in held_back_questions()[:4]:
        prompt = [{"role": "user", "content": question}]
        lengths = [
            decoder.complete(prompt, max_new_tokens=40, block_size=8, draft_temperature=drawn).acceptance_lengths
            for drawn in (0.0, 1e-4)
        ]
        assert lengths[0] == lengths[1]


SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
     "required": ["name", "n"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["red", "blue", None]}, "minItems": 1, "maxItems": 3},
)  # fmt: skip


def test_structured_answers_are_valid_and_the_same_without_the_drafter(decoder: Decoder) -> None:
    complete = 0
    for schema, question, temperature in product(SCHEMAS, held_back_questions()[:2], (0.0, 1.0)):
        asked: dict[str, Any] = {
            "prompt": [{"role": "user", "content": question}], "max_new_tokens": 64, "temperature": temperature,
            "seed": 7, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        }  # fmt: skip
        plain = decoder.complete(block_size=1, **asked)
        for size in (3, 8):
            found = decoder.complete(block_size=size, **asked)
            assert (found.token_ids, found.text, found.finish_reason) == (
                plain.token_ids,
                plain.text,
                plain.finish_reason,
            )
        if plain.finish_reason == "stop":
            complete += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(plain.text))
    assert complete >= 4  # of 8; the others may still have been writing


def questions(bundle: Bundle) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(bundle.file(TOKENIZER_FILE)))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in held_back_questions()]


def test_random_requests_get_what_plain_decoding_gives(bundle: Bundle, decoder: Decoder) -> None:
    """Every rule, block sizes 1 to 16, 1 to 4 together, any chunks."""
    count = 200 if bundle.manifest.precision == "fp32" else 40
    assert random_requests.check(decoder, questions(bundle), count, seed=1) > count


def test_random_requests_see_a_history_that_does_not_grow(fp32: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: committed tokens are not counted."""
    monkeypatch.setattr(SlotRules, "commit", lambda *_: None)
    with pytest.raises(AssertionError):
        random_requests.check(fp32, questions(fp32.engine.bundle), 80, seed=2)


def test_random_requests_see_a_stop_string_that_is_passed_over(fp32: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: what completes a stop string in the midst of a block is only seen at the block's end."""
    step = AnswerText.step

    def late(text: AnswerText, progress: Progress) -> Step:
        found = step(text, progress)
        return replace(found, token_ids=progress.token_ids)

    monkeypatch.setattr(AnswerText, "step", late)
    with pytest.raises(AssertionError):
        random_requests.check(fp32, questions(fp32.engine.bundle), 80, seed=2)


def test_random_requests_see_drafts_that_a_grammar_forbids(fp32: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: rows behind the first have the mask of the first."""
    masks = LlguidanceConstraint.masks
    monkeypatch.setattr(
        LlguidanceConstraint, "masks", lambda self, drafted: np.tile(masks(self, ()), (len(drafted) + 1, 1))
    )
    with pytest.raises(AssertionError):
        random_requests.check(fp32, questions(fp32.engine.bundle), 80, seed=2)


OPTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "logit_bias": (["--logit-bias", "17=9", "--logit-bias", "40=-inf"], {"logit_bias": {17: 9.0, 40: float("-inf")}}),
    "bad_token_ids": ([f"--bad-token-id={token}" for token in range(9, 300)], {"bad_token_ids": range(9, 300)}),
    "stop_token_ids": ([f"--stop-token-id={token}" for token in range(9, 300)], {"stop_token_ids": range(9, 300)}),
    "min_tokens": (["--min-tokens", "60"], {"min_tokens": 60}),
    "repetition_penalty": (["--repetition-penalty", "1.5"], {"repetition_penalty": 1.5}),
    "frequency_penalty": (["--frequency-penalty", "1.5"], {"frequency_penalty": 1.5}),
    "presence_penalty": (["--presence-penalty", "1.5"], {"presence_penalty": 1.5}),
    "logprobs": (["--logprobs", "2"], {"logprobs": 2}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_dflash_generate_is_the_librarys_argument(
    fp32: Decoder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    options, arguments = OPTIONS[name]
    shared = {"max_new_tokens": 80, "block_size": 4, "temperature": 0.8, "seed": 3}
    question = held_back_questions()[0]
    monkeypatch.setattr(Decoder, "load", lambda *_given, **_named: fp32)
    given = [f"--{key.replace('_', '-')}={value}" for key, value in shared.items()]
    monkeypatch.setattr("sys.argv", ["dflash-generate", "bundle", question, "--json", *given, *options])
    with pytest.raises(SystemExit):
        generate.main()
    found = json.loads(capsys.readouterr().out)
    prompt = [{"role": "user", "content": question}]
    expected, neutral = (fp32.complete(prompt, **shared, **more) for more in (arguments, {}))  # type: ignore[arg-type]
    wanted = json.loads(json.dumps(report.completion_json(expected)))
    assert (found["token_ids"], found["logprobs"]) == (wanted["token_ids"], wanted["logprobs"])
    assert (expected.token_ids, expected.logprobs) != (neutral.token_ids, neutral.logprobs)
