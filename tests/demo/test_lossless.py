"""Real prompts on real weights: with the drafter, without it, and transformers all write the same tokens."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_export.pipeline import ExportRequest, export
from dflash_runtime.completion import Completion
from dflash_runtime.decoder import Decoder
from tests.conftest import BUILD, DEMO_DRAFTER, ROOT, fingerprint

BLOCK_SIZES = (2, 5, 8, 16)
CHUNK = 32  # so that every prompt crosses chunk borders
NEAR_TIE = 1e-3  # a logit margin that summation order may turn
MAX_LEN = 1024
Generate = Callable[[Precision], Decoder]
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Sample:
    """How many prompts of which sets, and how far to write."""

    sets: tuple[str, ...]
    each: int
    new_tokens: int


FEW = Sample(("gsm8k", "humaneval", "mt_bench", "mbpp", "math500"), 1, 48)
MANY = Sample(("gsm8k", "humaneval", "mt_bench"), 20, 128)


def prompts(sample: Sample) -> Iterator[Messages]:
    for name in sample.sets:
        path = ROOT / "runtime" / "dflash_runtime" / "evaluation" / f"{name}.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines()[: sample.each]:
            yield [{"role": "user", "content": json.loads(line)["turns"][0]}]


def wide_drafter(folder: Path) -> Path:
    """The demo drafter, said to be trained for blocks of 16: what it drafts may be poor, what is kept not."""
    shutil.copytree(DEMO_DRAFTER, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["block_size"] = max(BLOCK_SIZES)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def decoder(demo_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Generate:
    """A decoder of the demo pair for blocks of up to 16 and short prefill chunks."""

    def bundle(precision: Precision) -> Bundle:
        out = BUILD / "test" / f"lossless-{precision}-{fingerprint()}"
        if out.exists():
            return Bundle.open(out)
        drafter = wide_drafter(tmp_path_factory.mktemp("drafter"))
        return export(
            ExportRequest(
                target=str(demo_target), drafter=str(drafter), out=out, precision=precision,
                max_len=MAX_LEN, prefill_chunk=CHUNK, block_sizes=BLOCK_SIZES,
            )
        )  # fmt: skip

    return lambda precision: Decoder.load(bundle(precision).path)


def write(decoder: Decoder, sample: Sample) -> list[tuple[Messages, Completion]]:
    """Every prompt at every block size; the answers must be one and the same."""
    written = []
    for messages in prompts(sample):
        plain = decoder.complete(messages, max_new_tokens=sample.new_tokens, block_size=1)
        for block_size in BLOCK_SIZES:
            found = decoder.complete(messages, max_new_tokens=sample.new_tokens, block_size=block_size)
            assert found.token_ids == plain.token_ids, f"block size {block_size}: {messages}"
            assert (found.text, found.finish_reason) == (plain.text, plain.finish_reason)
        written.append((messages, plain))
    return written


@torch.no_grad()
def near_ties(model: PreTrainedModel, prompt: list[int], answer: tuple[int, ...]) -> int:
    """How often transformers, given the same tokens before, prefers another one by less than a near-tie.

    One teacher-forced pass: where no token differs, greedy decoding in transformers writes this very answer.
    """
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    margin = logits.max(-1).values - chosen
    assert float(margin.max()) < NEAR_TIE, f"token {int(margin.argmax())} of the answer is off by {float(margin.max())}"
    return int((margin > 0).sum())


def assert_transformers_agrees(decoder: Decoder, target: Path, written: list[tuple[Messages, Completion]]) -> None:
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    tokens = sum(len(found.token_ids) for _, found in written)
    ties = sum(near_ties(model, list(decoder.encoder.encode(m)), found.token_ids) for m, found in written)
    assert ties <= tokens / 1000


def test_fp32_is_lossless_and_equals_transformers(decoder: Generate, demo_target: Path) -> None:
    fp32 = decoder("fp32")
    assert_transformers_agrees(fp32, demo_target, write(fp32, FEW))


def test_int8_is_lossless(decoder: Generate) -> None:
    written = write(decoder("int8"), FEW)
    assert any(len(found.token_ids) == FEW.new_tokens for _, found in written)


@pytest.mark.slow
def test_fp32_is_lossless_and_equals_transformers_on_many_prompts(decoder: Generate, demo_target: Path) -> None:
    fp32 = decoder("fp32")
    assert_transformers_agrees(fp32, demo_target, write(fp32, MANY))


@pytest.mark.slow
def test_int8_is_lossless_on_many_prompts(decoder: Generate) -> None:
    write(decoder("int8"), MANY)
