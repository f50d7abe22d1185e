"""Real prompts on real weights: with the drafter, without it, and transformers all write the same tokens."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_export.pipeline import ExportRequest, export
from dflash_runtime.decoder import Decoder
from tests.conftest import BUILD, DEMO_DRAFTER, ROOT, fingerprint
from tests.demo import random_requests
from tests.demo.lossless import assert_transformers_agrees, write

BLOCK_SIZES = (2, 5, 8, 16)
CHUNK = 32  # so that every prompt crosses chunk borders
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
        for stale in out.parent.glob(f"lossless-{precision}-*"):
            shutil.rmtree(stale)
        drafter = wide_drafter(tmp_path_factory.mktemp("drafter"))
        return export(
            ExportRequest(
                target=str(demo_target), drafter=str(drafter), out=out, precision=precision,
                max_len=MAX_LEN, prefill_chunk=CHUNK, block_sizes=BLOCK_SIZES, report_prompts=0,
            )
        )  # fmt: skip

    return lambda precision: Decoder.load(bundle(precision).path)


def test_fp32_is_lossless_and_equals_transformers(decoder: Generate, demo_target: Path) -> None:
    fp32 = decoder("fp32")
    assert_transformers_agrees(fp32, demo_target, write(fp32, prompts(FEW), FEW.new_tokens, BLOCK_SIZES))


@pytest.mark.slow
def test_int8_is_lossless(decoder: Generate) -> None:
    written = write(decoder("int8"), prompts(FEW), FEW.new_tokens, BLOCK_SIZES)
    assert any(len(found.token_ids) == FEW.new_tokens for _, found in written)


@pytest.mark.slow
def test_fp32_is_lossless_and_equals_transformers_on_many_prompts(decoder: Generate, demo_target: Path) -> None:
    fp32 = decoder("fp32")
    assert_transformers_agrees(fp32, demo_target, write(fp32, prompts(MANY), MANY.new_tokens, BLOCK_SIZES))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4", "fp16"])
def test_other_precisions_are_lossless_on_many_prompts(decoder: Generate, precision: Precision) -> None:
    write(decoder(precision), prompts(MANY), MANY.new_tokens, BLOCK_SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_random_requests_get_what_plain_decoding_gives(decoder: Generate, precision: Precision) -> None:
    """Every rule, block sizes 1 to 16, 1 to 4 together, any chunks."""
    loaded = decoder(precision)
    texts = [loaded.encoder.encode(messages) for messages in prompts(Sample(MANY.sets, 10, 0))]
    assert random_requests.check(loaded, texts, 200, seed=7) > 100
