"""`python -m tiny_pair`: the tiny target, and the questions that its drafter is trained and measured on."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from tiny_pair.conversations import conversations, prompts, write_prompts
from tiny_pair.target import TargetTraining, batches, new_target, save_target, train_target
from tiny_pair.tokenizer import train_tokenizer

TOKENIZER_CONVERSATIONS = 6000
DRAFTER_PROMPTS = 6000
MEASURED_PROMPTS = 60

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def target(
    out: Annotated[Path, typer.Argument(help="Folder to write the Hugging Face model to.")],
    steps: Annotated[int, typer.Option(help="Training steps of about 3,000 tokens.")] = 2000,
    seed: Annotated[int, typer.Option(help="Decides the weights' start and the text.")] = 0,
) -> None:
    """Train the tokenizer and the target."""
    sample = islice(conversations("tokenizer"), TOKENIZER_CONVERSATIONS)
    tokenizer = train_tokenizer(turn.content for turns in sample for turn in turns)
    config = TargetTraining(steps=steps, seed=seed)
    model = new_target(seed)
    data = track(batches(tokenizer, config), description="target", total=steps)
    train_target(model, iter(data), config)
    save_target(model, tokenizer, out)


@app.command()
def questions(out: Annotated[Path, typer.Argument(help="Folder to write the two JSONL files to.")]) -> None:
    """Write the questions that the drafter learns from and, apart from those, the ones it is measured on."""
    learned = prompts("drafter", DRAFTER_PROMPTS)
    out.mkdir(parents=True, exist_ok=True)
    write_prompts(out / "train.jsonl", learned)
    write_prompts(out / "prompts.jsonl", prompts("measure", MEASURED_PROMPTS, without=set(learned)))


if __name__ == "__main__":
    app()
