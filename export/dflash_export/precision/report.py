"""The report beside every bundle that isn't fp32: what its number formats cost, measured against fp32 on real prompts.

Logits are compared over each prompt and fp32's answer to it, texts and acceptance over greedy answers of both pairs.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from dflash_engines.backend import Programs
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Dtype, Limits
from dflash_engines.errors import CheckpointError
from dflash_engines.golden import Runner
from dflash_engines.host_engine import HostEngine, declared_programs
from dflash_engines.manifest import Backend, Precision
from dflash_export.parity import target_calls
from dflash_export.precision import scores
from dflash_export.precision.answers import Answer, answer
from dflash_export.precision.overflow import Overflow

PROMPTS = Path(__file__).with_name("report.jsonl")
NEW_TOKENS = 48
LONGEST = 192  # tokens of a prompt that are used
JSON, MARKDOWN = "precision.json", "precision.md"
_CHUNK = 32  # rows of logits that are held at once
Tokens = Sequence[int]
Decode = Callable[[Tokens], str]


class PrecisionReport(BaseModel):
    """What precision.json holds. Differences are to the same pair in fp32."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Backend
    precision: Precision
    draft_precision: Precision
    ran_in: str  # what computed the numbers: ONNX Runtime, or PyTorch in its place
    prompts: int
    rows: int  # whose logits were compared
    kl_divergence: float  # mean nats a row
    kl_divergence_worst: float  # 99th percentile
    top1_agreement: float
    perplexity: float  # of the prompts' own tokens
    perplexity_fp32: float
    chrf: float  # 0 to 100
    rouge_l: float  # 0 to 1
    same_answers: float  # share of answers that are the same token for token
    acceptance_length: float
    acceptance_length_fp32: float
    bytes: int  # weights.bin
    bytes_fp32: int
    overflows: tuple[dict[str, str | float], ...]  # tensors that fp16 can't hold, and what was done about each


def read(count: int) -> list[str]:
    """The first `count` prompts that reports are measured on. Raises CheckpointError when there are not as many."""
    texts = [json.loads(line)["turns"][0] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    if not 0 <= count <= len(texts):
        raise CheckpointError(f"there are {len(texts)} prompts to report on, so choose 0 to {len(texts)}, not {count}")
    return texts[:count]


def check_apart(calibration: Sequence[str], reported: Sequence[str]) -> None:
    """Raises CheckpointError when a prompt that formats were fitted to is one that they are measured on."""
    if both := sorted(set(calibration) & set(reported)):
        raise CheckpointError(
            f"the calibration prompts hold one that the precision report is measured on, {both[0][:60]!r}; take it out"
        )


class Comparison:
    """One pair twice: in fp32, and as it was lowered."""

    def __init__(self, bundle: Bundle, lowered: Programs, fp32: Programs, prompts: Sequence[Tokens]) -> None:
        manifest = bundle.manifest
        wide = manifest.model_copy(update={"geometry": replace(manifest.geometry, cache_dtype=Dtype.FLOAT)})
        longest = min(max(map(len, prompts)), LONGEST) + NEW_TOKENS
        self.block_size = max(manifest.limits.block_sizes)
        self.limits = Limits(max_len=longest, prefill_chunk=_CHUNK, block_sizes=manifest.limits.block_sizes)
        self.stops = frozenset(manifest.stop_token_ids)
        self.prompts = [prompt[-LONGEST:] for prompt in prompts]
        bundles = (replace(bundle, manifest=wide), bundle)
        self.engines = [HostEngine(b, p, self.limits) for b, p in zip(bundles, (fp32, lowered), strict=True)]
        self.runners = [
            Runner(p, declared_programs(b.manifest), self.limits) for b, p in zip(bundles, (fp32, lowered), strict=True)
        ]

    def answers(self) -> list[tuple[Answer, Answer]]:
        """fp32's answer to each prompt, and the lowered pair's."""
        return [self._answers(prompt) for prompt in self.prompts]

    def _answers(self, prompt: Tokens) -> tuple[Answer, Answer]:
        fp32, lowered = (
            answer(engine, prompt, max_new_tokens=NEW_TOKENS, block_size=self.block_size, stops=self.stops)
            for engine in self.engines
        )
        return fp32, lowered

    def logits(self, tokens: Tokens) -> list[scores.Logits]:
        """Of both targets, over the same tokens."""
        return [
            np.concatenate([runner.run(call)["logits"][0] for call in target_calls(tokens, _CHUNK)])
            for runner in self.runners
        ]


def measure(
    comparison: Comparison, decode: Decode, bundle: Bundle, *, bytes_fp32: int, overflows: Sequence[Overflow]
) -> PrecisionReport:
    """Run both pairs over the comparison's prompts."""
    manifest, answers = bundle.manifest, comparison.answers()
    nats, same, likelihoods = [], [], []
    for prompt, (fp32, _) in zip(comparison.prompts, answers, strict=True):
        reference, found = comparison.logits([*prompt, *fp32.tokens])
        nats.append(scores.kl_divergence(reference, found))
        same.append(scores.agreement(reference, found))
        likelihoods.append([scores.negative_log_likelihood(x, prompt) for x in (reference, found)])
    perplexities = [float(np.exp(np.concatenate(column).mean())) for column in zip(*likelihoods, strict=True)]
    texts = [[decode(given.tokens) for given in column] for column in zip(*answers, strict=True)]
    lengths = [
        [length for given in column for length in given.acceptance_lengths] for column in zip(*answers, strict=True)
    ]
    rows = np.concatenate(nats)
    return PrecisionReport(
        backend=manifest.backend,
        precision=manifest.precision,
        draft_precision=manifest.draft_precision,
        ran_in="ONNX Runtime" if manifest.backend == "onnxruntime" else "PyTorch",
        prompts=len(answers),
        rows=len(rows),
        kl_divergence=float(rows.mean()),
        kl_divergence_worst=float(np.quantile(rows, 0.99)),
        top1_agreement=float(np.concatenate(same).mean()),
        perplexity=perplexities[1],
        perplexity_fp32=perplexities[0],
        chrf=scores.chrf(*texts),
        rouge_l=scores.rouge_l(*texts),
        same_answers=float(np.mean([fp32.tokens == lowered.tokens for fp32, lowered in answers])),
        acceptance_length=_mean(lengths[1]),
        acceptance_length_fp32=_mean(lengths[0]),
        bytes=manifest.files["weights.bin"].bytes,
        bytes_fp32=bytes_fp32,
        overflows=tuple(
            {"tensor": o.tensor, "program": o.program, "largest": o.largest, "remedy": o.remedy} for o in overflows
        ),
    )


def _mean(lengths: Sequence[int]) -> float:
    return float(np.mean(lengths)) if lengths else 1.0


def write(report: PrecisionReport, folder: Path) -> None:
    """precision.json and precision.md in `folder`."""
    (folder / JSON).write_text(report.model_dump_json(indent=1), encoding="utf-8")
    (folder / MARKDOWN).write_text(markdown(report), encoding="utf-8")


def markdown(report: PrecisionReport) -> str:
    """The report as a page."""
    lines = [
        (
            "KL divergence to fp32, nats a token (99th percentile)",
            f"{report.kl_divergence:.4g} ({report.kl_divergence_worst:.3g})",
        ),
        ("likeliest token is fp32's", f"{report.top1_agreement:.2%}"),
        ("perplexity of the prompts (fp32)", f"{report.perplexity:.2f} ({report.perplexity_fp32:.2f})"),
        ("greedy answers: chrF / ROUGE-L to fp32's", f"{report.chrf:.1f} / {report.rouge_l:.3f}"),
        ("greedy answers that are fp32's", f"{report.same_answers:.0%}"),
        ("acceptance length (fp32)", f"{report.acceptance_length:.2f} ({report.acceptance_length_fp32:.2f})"),
        ("weights (fp32)", f"{report.bytes / 1e6:.1f} MB ({report.bytes_fp32 / 1e6:.1f} MB)"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in lines)
    formats = f"{report.precision}, drafter {report.draft_precision}, for {report.backend}"
    return (
        f"# Precision: {formats}\n\nMeasured in {report.ran_in} on {report.prompts} prompts and fp32's answers to "
        f"them, {report.rows} rows.\n\n| | |\n| --- | --- |\n{table}\n{_overflow_lines(report)}"
    )


def _overflow_lines(report: PrecisionReport) -> str:
    if not report.overflows:
        return ""
    rows = "\n".join(
        f"| {o['program']} | `{o['tensor']}` | {o['largest']:.3g} | {o['remedy']} |" for o in report.overflows
    )
    return (
        "\nToo large for fp16, with room for prompts that were not looked at:\n\n"
        f"| program | tensor | largest | what was done |\n| --- | --- | --- | --- |\n{rows}\n"
    )
