"""What each number format costs and gains: one fp32 bundle, converted to every other format, against itself.

    dflash-export demo build/demo-fp32 --draft-precision fp32
    python scripts/precision.py build/demo-fp32

Speeds are ratios: both bundles answer in turn, in one process, and the median of the pairs counts.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.command import run_command
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_export.precision import calibration, report
from dflash_export.precision.convert import convert
from dflash_export.precision.formats import Formats
from dflash_export.precision.graph_in_torch import TorchGraphPrograms
from dflash_export.precision.report import Comparison, PrecisionReport
from dflash_runtime.decoder import Decoder

# The last two are TensorRT's graphs, run in PyTorch: what an engine would write, not how fast.
FORMATS = {
    "fp16": Formats(target="fp16", draft="fp16"),
    "int8": Formats(target="int8", draft="int8"),
    "int4": Formats(target="int4", draft="int4"),
    "fp32, drafter int4": Formats(target="fp32", draft="int4"),
    "bf16 (TensorRT)": Formats(backend="tensorrt", target="bf16", draft="bf16"),
    "W8A8 (TensorRT)": Formats(backend="tensorrt", target="int8", draft="int8"),
    "int4 (TensorRT)": Formats(backend="tensorrt", target="int4", draft="int4"),
}
WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second over fp32's, of the same kind of decoding."""

    plain: float
    drafted: float


def encoded(decoder: Decoder, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Token ids of questions, as the runtime would ask them."""
    return [tuple(decoder.encoder.encode([{"role": "user", "content": text}])) for text in texts]


def measured(fp32: Bundle, lowered: Bundle, prompts: Sequence[tuple[int, ...]], decoder: Decoder) -> PrecisionReport:
    """The report, against the fp32 bundle."""
    in_fp32 = OnnxRuntimePrograms(fp32, Options())
    onnxruntime = lowered.manifest.backend == "onnxruntime"
    programs = OnnxRuntimePrograms(lowered, Options()) if onnxruntime else TorchGraphPrograms(lowered, in_fp32)
    return report.measure(
        Comparison(lowered, programs, in_fp32, prompts),
        lambda tokens: decoder.tokenizer.decode(list(tokens)),
        lowered,
        bytes_fp32=fp32.manifest.files["weights.bin"].bytes,
        overflows=(),
    )


def speed(fp32: Decoder, lowered: Decoder, prompts: Sequence[tuple[int, ...]], new_tokens: int, repeats: int) -> Speed:
    """Both decoders answer each prompt in turn."""
    ratios: dict[int | None, list[float]] = {1: [], None: []}
    for decoder in (fp32, lowered):
        decoder.complete(prompts[0], max_new_tokens=WARM_UP_TOKENS)
    for prompt in list(prompts) * repeats:
        for block_size, found in ratios.items():
            speeds = []
            for decoder in (fp32, lowered):
                decoder.forget()
                answer = decoder.complete(prompt, max_new_tokens=new_tokens, block_size=block_size, stop_token_ids=())
                speeds.append(answer.tokens_per_second)
            found.append(speeds[1] / speeds[0])
    return Speed(plain=median(ratios[1]), drafted=median(ratios[None]))


def rows(
    fp32: Bundle, names: Sequence[str], prompts: int, new_tokens: int, repeats: int
) -> Iterator[tuple[str, PrecisionReport, Speed | None]]:
    """One format after the other; only one converted bundle lies on the disk at a time."""
    baseline = Decoder.load(fp32.path)
    calibrated = encoded(baseline, calibration.read_prompts(calibration.DEFAULT))
    asked = encoded(baseline, report.read(prompts))
    for name in track(names, "formats", console=Console(stderr=True)):
        with tempfile.TemporaryDirectory(dir=fp32.path.parent) as folder:
            lowered, _ = convert(fp32, FORMATS[name], calibrated, Path(folder) / "bundle")
            found = measured(fp32, lowered, asked, baseline)
            runs = lowered.manifest.backend == "onnxruntime" and repeats
            ratio = speed(baseline, Decoder.load(lowered.path), asked, new_tokens, repeats) if runs else None
            yield name, found, ratio


def table(found: Sequence[tuple[str, PrecisionReport, Speed | None]]) -> Table:
    """One line a format."""
    titles = ("format", "MB", "KL", "top-1", "perplexity", "chrF", "ROUGE-L", "acceptance", "plain", "drafted")
    shown = Table(*titles, title="against fp32; the last two are speed ratios")
    if found:
        first = found[0][1]
        shown.add_row("fp32", f"{first.bytes_fp32 / 1e6:.0f}", "0", "100%", f"{first.perplexity_fp32:.2f}", "100", "1",
                      f"{first.acceptance_length_fp32:.2f}", "1", "1")  # fmt: skip
    for name, one, ratio in found:
        speeds = ("", "") if ratio is None else (f"{ratio.plain:.2f}x", f"{ratio.drafted:.2f}x")
        shown.add_row(name, f"{one.bytes / 1e6:.0f}", f"{one.kl_divergence:.4f}", f"{one.top1_agreement:.1%}",
                      f"{one.perplexity:.2f}", f"{one.chrf:.1f}", f"{one.rouge_l:.3f}",
                      f"{one.acceptance_length:.2f}", *speeds)  # fmt: skip
    return shown


def main(
    bundle: Annotated[Path, typer.Argument(help="An fp32 bundle, its drafter fp32 too.")],
    formats: Annotated[str, typer.Option(help=f"Some of: {'; '.join(FORMATS)}.")] = ";".join(FORMATS),
    prompts: Annotated[int, typer.Option(help="Prompts to measure on, at most 8.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Tokens of an answer whose speed is taken.")] = 64,
    repeats: Annotated[int, typer.Option(help="How often each prompt is answered for speed; 0: not at all.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Convert, measure and print."""
    names = [name.strip() for name in formats.split(";")]
    if strange := [name for name in names if name not in FORMATS]:
        raise typer.BadParameter(f"{strange[0]!r} is none of {'; '.join(FORMATS)}", param_hint="--formats")
    found = []
    for row in rows(Bundle.open(bundle), names, prompts, new_tokens, repeats):
        found.append(row)
        Console(stderr=True, width=160).print(table(found))  # so far: the rest takes minutes
    if as_json:
        fields = {name: one.model_dump() | {"plain_speed": s and s.plain, "drafted_speed": s and s.drafted}
                  for name, one, s in found}  # fmt: skip
        typer.echo(json.dumps(fields))
    else:
        Console(width=160).print(table(found))


if __name__ == "__main__":
    run_command(lambda: typer.run(main), extra="export")
