"""The trained tiny pair through the product: meaningful text, long and short acceptances, in seconds."""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dflash_engines.accept_inputs import SlotRules
from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_export.pipeline import ExportRequest, export
from dflash_runtime.block_size import BlockSizes
from dflash_runtime.cost_table import CostTable
from dflash_runtime.decoder import TOKENIZER_FILE, Decoder
from dflash_runtime.prompt import Prompt
from tests.demo import random_requests
from tests.demo.lossless import Written, assert_transformers_agrees, write
from tests.models.tiny_pair import DRAFTER, TARGET, held_back_questions

CHUNK = 7  # tokens; every prompt crosses several borders
QUESTIONS = 24
NEW_TOKENS = 160
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@pytest.fixture(scope="module", params=PRECISIONS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export(
        ExportRequest(
            target=str(TARGET), drafter=str(DRAFTER), out=tmp_path_factory.mktemp("tiny") / "bundle",
            precision=request.param, max_len=512, prefill_chunk=CHUNK, draft_noise=request.param == "fp32",
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def decoder(bundle: Bundle) -> Decoder:
    return Decoder.load(bundle.path)


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
    """This drafter is good: blocks are long, and they do not stay at one size."""
    found = [
        decoder.complete([{"role": "user", "content": question}], max_new_tokens=NEW_TOKENS)
        for question in held_back_questions()[:QUESTIONS]
    ]
    lengths = [length for completion in found for length in completion.acceptance_lengths]
    assert sum(lengths) / len(lengths) > 2
    assert len({size for completion in found for size in completion.block_size_histogram}) > 1


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


def test_random_requests_get_what_plain_decoding_gives(bundle: Bundle) -> None:
    """Every rule, block sizes 1 to 16, 1 to 4 together, any chunks."""
    count = 200 if bundle.manifest.precision == "fp32" else 40
    assert random_requests.check(bundle, questions(bundle), count, seed=1) > count


def test_random_requests_see_a_history_that_does_not_grow(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: committed tokens are not counted."""
    monkeypatch.setattr(SlotRules, "commit", lambda *_: None)
    with pytest.raises(AssertionError):
        random_requests.check(bundle, questions(bundle), 80, seed=2)
