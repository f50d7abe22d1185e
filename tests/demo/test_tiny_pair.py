"""The trained tiny pair through the product: meaningful text, long and short acceptances, in seconds."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dflash_engines.accept_inputs import SlotRules
from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_export.pipeline import ExportRequest, export
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
            precision=request.param, max_len=512, prefill_chunk=CHUNK,
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
