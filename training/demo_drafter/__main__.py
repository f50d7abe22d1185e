"""`python -m demo_drafter PROMPTS --out FILE`: the prompts of the demo drafter that no published set holds."""

import json
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from demo_drafter.stubs import make_stubs

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def stubs(
    prompts: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, help='JSONL of {"id", "turns"} that asks for functions.'),
    ],
    out: Annotated[Path, typer.Option(help="JSONL to write.")],
    variants: Annotated[int, typer.Option(help="Stubs made of every request.")] = 1,
) -> None:
    """Write prompts that ask to complete a Python function."""
    rows = list(chain.from_iterable(make_stubs(path, seed=seed) for path in prompts for seed in range(variants)))
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    typer.echo(f"{out}: {len(rows)} prompts")


if __name__ == "__main__":
    app()
