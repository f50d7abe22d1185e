"""How much a drafter's guesses are kept: greedy answers in whole blocks, by evaluation set and by position.

Several answers share each pass, which changes no token of any: quicker than `dflash-bench`, but no measure of speed.

    python scripts/acceptance.py build/demo --prompts 50 --new-tokens 256
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dflash_engines.command import run_command
from dflash_runtime.bench.tally import Tally, tally
from dflash_runtime.evaluation import SETS, questions
from dflash_runtime.serving import ConcurrentDecoder


def measure(decoder: ConcurrentDecoder, name: str, prompts: int, new_tokens: int, block_size: int, slots: int) -> Tally:
    """Answer the set's first questions as chats."""
    requests = [
        decoder.request([{"role": "user", "content": question}], max_new_tokens=new_tokens, block_size=block_size)
        for question in questions(name, prompts)
    ]
    with ThreadPoolExecutor(slots) as pool:
        answers = pool.map(decoder.complete, requests)
        return tally(track(answers, name, total=len(requests), console=Console(stderr=True)))


def table(found: dict[str, Tally]) -> Table:
    """A row a set."""
    shown = Table("set", "passes", "acceptance length", "acceptance rate", "kept at position 1, 2, …")
    for name, of_set in found.items():
        by_position = " ".join(f"{share:.2f}" for share in of_set.by_position)
        shown.add_row(
            name, f"{of_set.count:,}", f"{of_set.acceptance_length:.2f}", f"{of_set.acceptance_rate:.1%}", by_position
        )
    return shown


def acceptance(
    bundle: Annotated[Path, typer.Argument(help="Folder that dflash-export wrote.")],
    prompts: Annotated[int, typer.Option(help="Of each set.")] = 50,
    new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    block_size: Annotated[int, typer.Option(help="Anchor included.")] = 8,
    slots: Annotated[int, typer.Option(help="Answers together.")] = 8,
    threads: Annotated[int | None, typer.Option(help="CPU threads. Default: all.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON to write.")] = None,
) -> None:
    """Mean tokens gained by a verifying pass: all tokens over all passes of a set."""
    with ConcurrentDecoder.load(bundle, slots=slots, threads=threads) as decoder:
        found = {name: measure(decoder, name, prompts, new_tokens, block_size, slots) for name in SETS}
    Console().print(table(found))
    if out is not None:
        out.write_text(json.dumps({name: of_set.as_json() for name, of_set in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(acceptance)
    run_command(command, extra="ort")
