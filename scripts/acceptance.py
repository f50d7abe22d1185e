"""How much a drafter's guesses are kept: greedy answers through the real loop, by evaluation set and by position.

python scripts/acceptance.py build/demo --prompts 50 --max-new-tokens 256
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dflash_engines.command import run_command
from dflash_runtime.decoder import Decoder

SETS = ("gsm8k", "humaneval", "mbpp", "mt_bench")
EVALUATION = Path(__file__).parents[1] / "runtime" / "dflash_runtime" / "evaluation"


@dataclass(slots=True, kw_only=True)
class Tally:
    """Verifying passes of one set, by the tokens they gained."""

    block_size: int
    lengths: Counter[int] = field(default_factory=Counter)

    @property
    def passes(self) -> int:
        """Verifying target passes; the prefill's is none."""
        return self.lengths.total()

    @property
    def acceptance_length(self) -> float:
        """Tokens gained over passes: accepted drafts, and one of the target's own."""
        return sum(length * count for length, count in self.lengths.items()) / self.passes

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return (self.acceptance_length - 1) / (self.block_size - 1)

    @property
    def by_position(self) -> list[float]:
        """Share of passes in which the drafted token at position 1, 2, … was kept."""
        return [
            sum(count for length, count in self.lengths.items() if length > position) / self.passes
            for position in range(1, self.block_size)
        ]

    def as_json(self) -> dict[str, object]:
        """All of it."""
        return {
            "passes": self.passes,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "by_position": self.by_position,
        }


def first_turns(name: str, count: int) -> Iterator[str]:
    """The first `count` questions of a set."""
    lines = (EVALUATION / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines[:count]:
        yield json.loads(line)["turns"][0]


def measure(decoder: Decoder, name: str, *, prompts: int, max_new_tokens: int, block_size: int) -> Tally:
    """Answer the set's first questions as chats."""
    tally = Tally(block_size=block_size)
    for question in track(list(first_turns(name, prompts)), name, console=Console(stderr=True)):
        messages = [{"role": "user", "content": question}]
        answer = decoder.complete(messages, max_new_tokens=max_new_tokens, block_size=block_size)
        tally.lengths.update(answer.acceptance_lengths)
    return tally


def table(tallies: dict[str, Tally]) -> Table:
    """One line a set."""
    shown = Table("set", "passes", "acceptance length", "rate", "kept by position")
    for name, tally in tallies.items():
        positions = " ".join(f"{share:.2f}" for share in tally.by_position)
        shown.add_row(
            name, str(tally.passes), f"{tally.acceptance_length:.2f}", f"{tally.acceptance_rate:.2f}", positions
        )
    return shown


def main(
    bundle: Annotated[Path, typer.Argument(help="Folder that dflash-export wrote.")],
    prompts: Annotated[int, typer.Option(help="Questions of each set.")] = 50,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 256,
    block_size: Annotated[int | None, typer.Option(help="Default: what the drafter was trained for.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Measure and print."""
    decoder = Decoder.load(bundle)
    size = decoder.engine.bundle.manifest.block_size if block_size is None else block_size
    tallies = {
        name: measure(decoder, name, prompts=prompts, max_new_tokens=max_new_tokens, block_size=size) for name in SETS
    }
    if as_json:
        typer.echo(json.dumps({name: tally.as_json() for name, tally in tallies.items()}))
    else:
        Console().print(table(tallies))


if __name__ == "__main__":
    run_command(lambda: typer.run(main), extra="ort")
