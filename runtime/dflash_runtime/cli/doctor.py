"""dflash-doctor: say why acceptance is low, for a bundle or for a pair of checkpoints."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dflash_engines.command import run_command
from dflash_engines.finding import Verdict
from dflash_runtime.cli import options
from dflash_runtime.cli.conversations import read_conversations
from dflash_runtime.doctor.examination import Examination, as_json, examine_bundle, examine_checkpoints
from dflash_runtime.doctor.report import as_text
from dflash_runtime.evaluation import questions

ILL = 4  # the exit code for a fault
EPILOG = """
[bold]Examples[/]

dflash-doctor build/demo

dflash-doctor Qwen/Qwen3-4B z-lab/Qwen3-4B-DFlash-b16 --html doctor.html

dflash-doctor build/demo --prompts my_traffic.jsonl --json

[bold]Exit codes[/]

0 no fault; 1 the engine failed; 2 bad input; 4 a fault was found, with --strict also a warning
"""
SETS = ("gsm8k", "humaneval", "mt_bench")
app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def examine(
    subject: Annotated[str, typer.Argument(help="A bundle, or the checkpoint of a target.", show_default=False)],
    drafter: Annotated[
        str | None, typer.Argument(help="The drafter's checkpoint, when SUBJECT is a target.", show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Ask these, such as your own traffic.", show_default=False),
    ] = None,
    count: Annotated[int, typer.Option(help="How many prompts are asked.")] = 9,
    max_new_tokens: options.MaxNewTokens = 64,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings end the command like faults.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with drawings here.", show_default=False)] = None,
    backend: options.Backend = "onnxruntime",
    threads: options.Threads = None,
    as_json_: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of text.")] = False,
) -> None:
    """Examine a bundle, or a target and a drafter: one line a check, with a verdict and what to do.

    Without --prompts, the first questions of the evaluation sets are asked.
    """
    asked = _questions(prompts, count)
    with Console(stderr=True).status("loading") as status:
        if drafter is None:
            found = examine_bundle(
                Path(subject), asked, max_new_tokens, backend=backend, threads=threads, told=status.update
            )
        else:
            found = examine_checkpoints(subject, drafter, asked, max_new_tokens, status.update)
    typer.echo(json.dumps(as_json(found)) if as_json_ else as_text(found))
    if html is not None:
        _write_page(found, html)
    if found.verdict is Verdict.FAULT or (strict and found.verdict is Verdict.WARNING):
        raise typer.Exit(ILL)


def _questions(file: Path | None, count: int) -> list[str]:
    """Of the file, or of the evaluation sets in turn."""
    if file is not None:
        return [conversation.turns[0] for conversation in read_conversations(None, file)][:count]
    each = -(-count // len(SETS))
    by_set = [questions(name, each) for name in SETS]
    return [asked[i] for i in range(each) for asked in by_set][:count]


def _write_page(found: Examination, file: Path) -> None:
    from dflash_runtime.doctor.page import page  # drawings need matplotlib
    from dflash_runtime.reports.page import as_html

    file.write_text(as_html(page(found)), encoding="utf-8")


def main() -> None:
    """The console script."""
    run_command(app, extra="ort,bench")
