"""The tiny pair in every format that ONNX Runtime runs: still lossless, and what its report says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dflash_engines import golden
from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.contract import GREEDY, Dtype
from dflash_engines.errors import CheckpointError, EngineError
from dflash_engines.golden import Call
from dflash_engines.host_engine import declared_programs
from dflash_engines.manifest import Precision
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_export import pipeline
from dflash_export.pipeline import ExportRequest, export
from dflash_export.precision import report
from dflash_export.precision.convert import convert
from dflash_export.precision.formats import Formats
from dflash_export.precision.report import Comparison, PrecisionReport
from dflash_export.programs.build import Modules, assemble
from dflash_runtime.decoder import Decoder
from dflash_runtime.prompt import Prompt
from tests.demo.lossless import write
from tests.models.tiny_pair import DRAFTER, TARGET, held_back_questions

QUESTIONS, NEW_TOKENS = 6, 80
LOSSY: tuple[Precision, ...] = ("fp16", "int8", "int4")


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """With greedy acceptance alone: tracing the other variants takes longer than all the rest."""

    def greedy(*arguments: object, **options: object) -> Modules:
        modules = assemble(*arguments, **options)  # type: ignore[arg-type]
        return replace(modules, accepts={GREEDY: modules.accepts[GREEDY]})

    out = tmp_path_factory.mktemp("fp32") / "bundle"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "assemble", greedy)
        return export(ExportRequest(target=str(TARGET), drafter=str(DRAFTER), out=out, max_len=512, prefill_chunk=7))


@pytest.fixture(scope="module")
def prompts(fp32: Bundle) -> list[tuple[int, ...]]:
    decoder = Decoder.load(fp32.path)
    return [tuple(decoder.encoder.encode([{"role": "user", "content": q}])) for q in held_back_questions()[:QUESTIONS]]


@pytest.fixture(scope="module", params=LOSSY)
def lowered(
    request: pytest.FixtureRequest, fp32: Bundle, prompts: list[Prompt], tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    formats = Formats(target=request.param, draft=request.param)
    return convert(fp32, formats, prompts[:5], tmp_path_factory.mktemp(request.param) / "bundle")[0]  # type: ignore[arg-type]


def test_every_block_size_writes_what_plain_decoding_writes(lowered: Bundle, prompts: list[Prompt]) -> None:
    written = write(Decoder.load(lowered.path), prompts, NEW_TOKENS, block_sizes=(2, 5, 8))
    assert sum(found.finish_reason == "stop" for _, found in written) > QUESTIONS // 2


def test_a_slot_computes_what_it_computes_alone(lowered: Bundle) -> None:
    """Rows of two requests are in one product."""
    declared = declared_programs(lowered.manifest)
    tokens, start = np.array([[5, 9, 200, 31], [700, 8, 41, 6]]), np.zeros(2, np.int64)

    def logits(slots: slice) -> NDArray[np.float32]:
        runner = golden.Runner(OnnxRuntimePrograms(lowered, Options()), declared, lowered.manifest.limits)
        inputs = {"tokens": tokens[slots], "start": start[slots], "length": start[slots] + 4,
                  "rows": np.tile(np.arange(4), (2, 1))[slots]}  # fmt: skip
        found: NDArray[np.float32] = runner.run(Call(program="target", first_slot=0, inputs=inputs))["logits"]
        return found

    together = logits(slice(0, 2))
    for slot in (0, 1):
        np.testing.assert_array_equal(logits(slice(slot, slot + 1))[0], together[slot])


def test_the_report_compares_with_fp32(lowered: Bundle, fp32: Bundle, prompts: list[tuple[int, ...]]) -> None:
    tokenizer = Tokenizer.from_file(str(lowered.file("tokenizer.json")))
    ours, theirs = (OnnxRuntimePrograms(bundle, Options()) for bundle in (lowered, fp32))
    found = report.measure(
        Comparison(lowered, ours, theirs, prompts[:3]),
        lambda tokens: str(tokenizer.decode(list(tokens))),
        lowered,
        bytes_fp32=fp32.manifest.files["weights.bin"].bytes,
        overflows=(),
    )
    worst = {"fp16": 1e-4, "int8": 0.02, "int4": 0.5}[lowered.manifest.precision]
    assert 0 < found.kl_divergence < worst
    assert found.kl_divergence <= found.kl_divergence_worst
    assert found.top1_agreement > 0.7
    assert found.acceptance_length_fp32 > 2
    assert abs(found.acceptance_length - found.acceptance_length_fp32) < 1.5
    assert found.bytes < found.bytes_fp32
    if lowered.manifest.precision == "fp16":
        assert (found.chrf, found.rouge_l, found.same_answers) == (100, 1, 1)
    report.write(found, lowered.path)
    assert PrecisionReport.model_validate_json((lowered.path / report.JSON).read_text()) == found
    assert f"{found.acceptance_length:.2f}" in (lowered.path / report.MARKDOWN).read_text()


def test_golden_cases_hold_and_catch_another_precisions_weights(lowered: Bundle, fp32: Bundle) -> None:
    cases = golden.Golden.load(lowered.file(golden.FILE))
    declared = declared_programs(lowered.manifest)
    runner = golden.Runner(OnnxRuntimePrograms(lowered, Options()), declared, lowered.manifest.limits)
    assert golden.check(cases, runner) == 0.0
    strict = golden.Golden(calls=cases.calls, results=cases.results, tolerance=1e-4)
    other = golden.Runner(OnnxRuntimePrograms(fp32, Options()), declared_programs(fp32.manifest), fp32.manifest.limits)
    with pytest.raises(EngineError, match="golden case"):
        golden.check(strict, other)


def test_caches_are_of_the_bundles_type(lowered: Bundle) -> None:
    half = lowered.manifest.precision == "fp16"
    assert lowered.manifest.geometry.cache_dtype is (Dtype.FLOAT16 if half else Dtype.FLOAT)


def test_only_fp32_bundles_are_converted(lowered: Bundle, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="only an fp32 bundle"):
        convert(lowered, Formats(target="int4", draft="int4"), [], tmp_path / "out")
