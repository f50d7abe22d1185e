"""dflash-bench: measure bundles, and other ways to run the same target, on the same prompts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from dflash_engines.command import OUTPUTS_DIFFER, run_command
from dflash_engines.errors import RequestError
from dflash_runtime.bench.peers import PeerChoice
from dflash_runtime.bench.plan import MODES, PRESETS, Mode, Plan
from dflash_runtime.bench.report import page
from dflash_runtime.bench.results import BenchResult, as_json
from dflash_runtime.bench.run import BenchRequest, bench
from dflash_runtime.cli import options
from dflash_runtime.reports.page import as_html, as_markdown

EPILOG = """
[bold]Examples[/]

dflash-bench build/demo --preset quick

dflash-bench build/demo build/demo-int8 --preset report --minutes 10 --peer transformers --out build/report

dflash-bench build/demo --mode blocks --mode context --json

[bold]Exit codes[/]

0 done; 1 the engine failed; 2 bad input; 3 answers with the drafter differ from those without
"""
Bundles = Annotated[list[Path], typer.Argument(help="Folders that dflash-export wrote.", show_default=False)]
Preset = Annotated[Literal["quick", "core", "report"], typer.Option(help="How much is measured.")]
Modes = Annotated[
    list[str] | None,
    typer.Option(help=f"One of {', '.join(MODES)}; may be given again. Default: the preset's.", show_default=False),
]
Sets = Annotated[list[str] | None, typer.Option("--set", help="A prompt set; may be given again.", show_default=False)]
Prompts = Annotated[int | None, typer.Option(help="Prompts of each set.", show_default=False)]
NewTokens = Annotated[int | None, typer.Option(help="Longest answer, in tokens.", show_default=False)]
Repeats = Annotated[int | None, typer.Option(help="Runs of each measurement.", show_default=False)]
Peers = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[=PATH]", help="Another way to run the target; may be given again.", show_default=False),
]
Minutes = Annotated[
    float | None, typer.Option(help="Cut repeats and prompts until this is enough.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for report.json, report.md and report.html.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of Markdown.")]
app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def measure(
    bundles: Bundles,
    preset: Preset = "core",
    mode: Modes = None,
    sets: Sets = None,
    prompts: Prompts = None,
    new_tokens: NewTokens = None,
    repeats: Repeats = None,
    peer: Peers = None,
    minutes: Minutes = None,
    out: Out = None,
    backend: options.Backend = "onnxruntime",
    threads: options.Threads = None,
    as_json_: Json = False,
) -> None:
    """Measure how fast bundles answer, with and without the drafter.

    Everything is run in turn in this process. Run nothing else meanwhile; what
    each part will take is told first.
    """
    given: dict[str, Any] = {"modes": tuple(mode) if mode else None, "sets": tuple(sets) if sets else None,
                             "prompts": prompts, "new_tokens": new_tokens, "repeats": repeats}  # fmt: skip
    plan = replace(PRESETS[preset], **{key: value for key, value in given.items() if value is not None})
    request = BenchRequest(
        bundles=tuple(bundles), plan=plan, peers=tuple(PeerChoice.parse(text) for text in peer or ()),
        minutes=minutes, backend=backend, threads=threads,
    )  # fmt: skip
    if out is not None and out.exists() and not out.is_dir():
        raise RequestError(f"--out {out} is no folder")
    err = Console(stderr=True)
    with err.status("loading") as status:
        result = bench(request, lambda plan, costs: _show_costs(err, plan, costs), status.update)
    typer.echo(json.dumps(as_json(result)) if as_json_ else as_markdown(page(result)))
    if out is not None:
        write_report(result, out)
    if not result.lossless:
        raise typer.Exit(OUTPUTS_DIFFER)


def write_report(result: BenchResult, out: Path) -> None:
    """report.json, report.md and report.html in the folder `out`."""
    from dflash_runtime.bench.drawings import with_drawings  # matplotlib is only needed here

    out.mkdir(parents=True, exist_ok=True)
    found = page(result)
    (out / "report.json").write_text(json.dumps(as_json(result), indent=1) + "\n", encoding="utf-8")
    (out / "report.md").write_text(as_markdown(found) + "\n", encoding="utf-8")
    (out / "report.html").write_text(as_html(with_drawings(found, result)), encoding="utf-8")


def _show_costs(err: Console, plan: Plan, costs: dict[str, dict[Mode, float]]) -> None:
    """What each part takes at most, before it begins."""
    table = Table("bundle", *plan.modes, "all", title=f"seconds, at most ({plan.prompts} prompts a set, "
                  f"{plan.new_tokens} tokens, {plan.repeats} repeats)", title_justify="left")  # fmt: skip
    for name, parts in costs.items():
        table.add_row(name, *(f"{parts[mode]:.0f}" for mode in plan.modes), f"{sum(parts.values()):.0f}")
    total = sum(sum(parts.values()) for parts in costs.values())
    err.print(table)
    err.print(f"{total / 60:.1f} minutes in all", highlight=False)


def main() -> None:
    """The console script."""
    run_command(app, extra="ort,bench")
