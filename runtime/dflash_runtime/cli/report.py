"""What dflash-generate shows: answers as they come, a line or a table of measurements, or JSON."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dflash_runtime.comparison import Comparison, speed_ratio
from dflash_runtime.completion import Completion, Step, decoding_speed

GREEN, RESET = "\x1b[32m", "\x1b[0m"


def show_plainly(step: Step) -> None:
    """Write a step's text to stdout, byte for byte."""
    sys.stdout.write(step.text)
    sys.stdout.flush()


def show_in_colour(step: Step) -> None:
    """Write a step's text to a terminal, what came from accepted drafts in green."""
    own = step.text[len(step.accepted_text) :]
    sys.stdout.write(f"{GREEN}{step.accepted_text}{RESET}{own}" if step.accepted_text else own)
    sys.stdout.flush()


def stdout_has_colours() -> bool:
    """Whether stdout is a terminal and NO_COLOR isn't set."""
    console = Console()
    return console.is_terminal and not console.no_color


def show_summary(err: Console, completion: Completion) -> None:
    """One line about an answer."""
    err.print(
        f"{len(completion.token_ids)} tokens ({completion.finish_reason}), "
        f"{completion.acceptance_length:.2f} per target pass, {completion.tokens_per_second:.1f} tokens/s"
        + ("" if completion.seed is None else f", seed {completion.seed}"),
        style="dim",
        highlight=False,
    )


def show_comparisons(err: Console, comparisons: Sequence[Comparison]) -> None:
    """A table with a row for every answer, and the totals when there are several."""
    table = Table(title="with and without the drafter", title_justify="left")
    for heading in ("answer", "tokens", "acceptance", "tokens/s with", "without", "ratio", "text"):
        table.add_column(heading, justify="left" if heading == "text" else "right")
    for number, comparison in enumerate(comparisons, start=1):
        table.add_row(str(number), *_cells([comparison]))
    if len(comparisons) > 1:
        table.add_section()
        table.add_row("all", *_cells(comparisons))
    err.print(table)


def _cells(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    drafted = [comparison.drafted for comparison in comparisons]
    lengths = [length for completion in drafted for length in completion.acceptance_lengths]
    ratio = speed_ratio(comparisons)
    same = all(comparison.identical for comparison in comparisons)
    return (
        str(sum(len(completion.token_ids) for completion in drafted)),
        f"{sum(lengths) / len(lengths):.2f}" if lengths else "-",
        f"{decoding_speed(drafted):.1f}",
        f"{decoding_speed([comparison.plain for comparison in comparisons]):.1f}",
        "-" if ratio is None else f"{ratio:.2f}x",
        "[green]identical[/]" if same else "[bold red]different[/]",
    )


def completion_json(completion: Completion) -> dict[str, Any]:
    """A completion's fields and derived numbers."""
    return dataclasses.asdict(completion) | {
        "acceptance_length": completion.acceptance_length,
        "acceptance_rate": completion.acceptance_rate,
        "acceptance_histogram": completion.acceptance_histogram,
        "acceptance_by_position": completion.acceptance_by_position,
        "block_size_histogram": completion.block_size_histogram,
        "tokens_per_second": completion.tokens_per_second,
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The drafted answer, with the plain one beside it."""
    return completion_json(comparison.drafted) | {
        "plain": completion_json(comparison.plain),
        "speed_ratio": comparison.speed_ratio,
        "identical": comparison.identical,
    }


def show_json(prompt: str, fields: dict[str, Any]) -> None:
    """One line of --json output."""
    sys.stdout.write(json.dumps({"prompt": prompt} | fields, ensure_ascii=False) + "\n")
    sys.stdout.flush()
