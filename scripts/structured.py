"""Structured output with the drafter: whether it is valid and the same as without, and what it costs.

python scripts/structured.py check build/demo
python scripts/structured.py speed build/demo
python scripts/structured.py forced build/demo
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from unittest.mock import patch

import jsonschema
import typer
from rich.console import Console

from dflash_engines.command import OUTPUTS_DIFFER, run_command
from dflash_runtime.completion import Completion
from dflash_runtime.decoder import Decoder, finish
from dflash_runtime.evaluation import SETS, questions
from dflash_runtime.request import Request
from dflash_runtime.serving.concurrent_decoder import ConcurrentDecoder
from dflash_runtime.structured.grammars import LlguidanceConstraint

Schema = Mapping[str, Any]
SCHEMAS: dict[str, Schema] = json.loads((Path(__file__).parent / "schemas.json").read_text(encoding="utf-8"))
app = typer.Typer(add_completion=False, rich_markup_mode="rich", help=__doc__)
BundleFolder = Annotated[Path, typer.Argument(help="Folder that dflash-export wrote.")]
Count = Annotated[int, typer.Option("--prompts", help="Prompts for every schema, in turn from all sets.")]
Skip = Annotated[int, typer.Option(help="Leave out that many prompts before.")]
NewTokens = Annotated[int, typer.Option(help="Longest answer.")]
BlockSize = Annotated[int | None, typer.Option(help="Of the drafted answers. Default: the drafter's.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: all.")]
Slots = Annotated[int, typer.Option(help="Requests together.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prompt under one schema, with the drafter and without."""

    drafted: Completion
    plain: Completion

    @property
    def identical(self) -> bool:
        """Whether the drafter changed nothing."""
        return (self.drafted.token_ids, self.drafted.text) == (self.plain.token_ids, self.plain.text)


def prompts(count: int, skip: int) -> list[str]:
    """In turn from all sets."""
    each = -(-(count + skip) // len(SETS))
    return [text for texts in zip(*(questions(name, each) for name in SETS), strict=True) for text in texts][
        skip : skip + count
    ]


def request(decoder: Decoder, question: str, schema: Schema | None, new_tokens: int, block_size: int) -> Request:
    """Asks for an answer under `schema`, or for a free one to the same prompt."""
    wanted = json.dumps(schema, ensure_ascii=False) if schema is not None else "any"
    text = f"{question}\n\nAnswer in JSON with this schema: {wanted}"
    response_format = None if schema is None else {"type": "json_schema", "json_schema": {"schema": schema}}
    return decoder.request(
        [{"role": "user", "content": text}], new_tokens, block_size, None, response_format=response_format
    )


@app.command()
def check(
    bundle: BundleFolder,
    count: Count = 50,
    skip: Skip = 0,
    new_tokens: NewTokens = 96,
    block_size: BlockSize = None,
    slots: Slots = 8,
    threads: Threads = None,
) -> None:
    """Every complete answer is valid, and all are those of plain decoding; several requests share each pass."""
    wrong, console = 0, Console()
    with ConcurrentDecoder.load(bundle, slots=slots, threads=threads, max_len=1024, queue_size=4 * count) as decoder:
        size = block_size or decoder.texts.engine.bundle.manifest.block_size
        for name, schema in SCHEMAS.items():
            pairs = list(answers(decoder, schema, prompts(count, skip), new_tokens, size))
            line, faults = _checked(schema, pairs)
            console.print(f"{name}: {line}")
            wrong += faults
    if wrong:
        raise typer.Exit(OUTPUTS_DIFFER)


def answers(
    decoder: ConcurrentDecoder, schema: Schema, texts: Sequence[str], new_tokens: int, block_size: int
) -> Iterator[Pair]:
    """All prompts at once, with the drafter and then without."""
    asked = [request(decoder.texts, text, schema, new_tokens, block_size) for text in texts]
    drafted = [decoder.generate(one) for one in asked]
    plain = [decoder.generate(replace(one, block_size=1)) for one in asked]
    for with_drafter, without in zip(drafted, plain, strict=True):
        yield Pair(drafted=with_drafter.finish(), plain=without.finish())


def _checked(schema: Schema, pairs: Sequence[Pair]) -> tuple[str, int]:
    """A line about the answers, and how many are wrong."""
    complete = [pair for pair in pairs if pair.drafted.finish_reason == "stop"]
    valid = sum(is_valid(pair.drafted.text, schema) for pair in complete)
    identical = sum(pair.identical for pair in pairs)
    line = (
        f"{len(pairs)} answers, {len(complete)} complete, {valid} of them valid, {identical} of all identical without "
        f"the drafter, acceptance length {acceptance_length([pair.drafted for pair in pairs]):.2f}"
    )
    return line, len(complete) - valid + len(pairs) - identical


def schemas_in_turn(count: int, skip: int) -> Iterator[tuple[str, Schema]]:
    """Each prompt with one schema."""
    return zip(prompts(count, skip), cycle(SCHEMAS.values()), strict=False)


def is_valid(text: str, schema: Schema) -> bool:
    """By a library that knows nothing of ours."""
    try:
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@app.command()
def speed(
    bundle: BundleFolder,
    count: Count = 10,
    skip: Skip = 0,
    new_tokens: NewTokens = 64,
    block_size: BlockSize = None,
    threads: Threads = None,
) -> None:
    """Constrained over free speculation, and over constrained plain decoding: run in turn, medians of ratios."""
    decoder = Decoder.load(bundle, threads=threads, max_len=1024)
    size = block_size or decoder.engine.bundle.manifest.block_size
    rows = [_timed(decoder, text, schema, new_tokens, size) for text, schema in schemas_in_turn(count, skip)]
    console = Console()
    for name, values in {
        "constrained over free speculation, tokens/s": [c.tokens_per_second / f.tokens_per_second for f, c, _ in rows],
        "constrained over free speculation, time a pass": [_pass(c) / _pass(f) for f, c, _ in rows],
        "constrained speculation over constrained plain, tokens/s":
            [c.tokens_per_second / p.tokens_per_second for _, c, p in rows],
        "acceptance length, free": [f.acceptance_length for f, _, _ in rows],
        "acceptance length, constrained": [c.acceptance_length for _, c, _ in rows],
    }.items():  # fmt: skip
        console.print(f"{name}: median {median(values):.3f}, {min(values):.3f} to {max(values):.3f}, of {len(values)}")


def _timed(
    decoder: Decoder, text: str, schema: Schema, new_tokens: int, block_size: int
) -> tuple[Completion, Completion, Completion]:
    """Free and constrained with the drafter, constrained without."""
    free = request(decoder, text, None, new_tokens, block_size)
    constrained = request(decoder, text, schema, new_tokens, block_size)
    found = []
    for asked in (free, constrained, replace(constrained, block_size=1)):
        decoder.forget()
        found.append(finish(decoder.run(asked)))
    return found[0], found[1], found[2]


@app.command()
def forced(
    bundle: BundleFolder,
    count: Count = 10,
    skip: Skip = 0,
    new_tokens: NewTokens = 64,
    block_size: BlockSize = None,
    threads: Threads = None,
) -> None:
    """What it gains to put the tokens that a grammar forces into drafts."""
    decoder = Decoder.load(bundle, threads=threads, max_len=1024)
    size = block_size or decoder.engine.bundle.manifest.block_size
    asked = [request(decoder, text, schema, new_tokens, size) for text, schema in schemas_in_turn(count, skip)]
    steered = [finish(decoder.run(one)) for one in asked]
    with patch.object(LlguidanceConstraint, "steer", lambda self, drafted: list(drafted)):
        as_drafted = [finish(decoder.run(one)) for one in asked]
    identical = [a.token_ids for a in steered] == [b.token_ids for b in as_drafted]
    Console().print(
        f"acceptance length {acceptance_length(as_drafted):.3f} as drafted, {acceptance_length(steered):.3f} with "
        f"forced tokens in their places; answers {'identical' if identical else 'DIFFERENT'}"
    )
    if not identical:
        raise typer.Exit(OUTPUTS_DIFFER)


def acceptance_length(completions: Sequence[Completion]) -> float:
    """Tokens gained by a verifying pass, over all of them."""
    lengths = [length for completion in completions for length in completion.acceptance_lengths]
    return sum(lengths) / max(len(lengths), 1)


def _pass(completion: Completion) -> float:
    """Seconds of one verifying pass."""
    return completion.seconds.decode / max(len(completion.acceptance_lengths), 1)


if __name__ == "__main__":
    run_command(app, extra="structured")
