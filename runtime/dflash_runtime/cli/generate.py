"""dflash-generate: answer prompts with a bundle, and compare with plain decoding."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dflash_engines.command import OUTPUTS_DIFFER, run_command
from dflash_engines.errors import RequestError
from dflash_engines.sampling import SamplingParameters
from dflash_runtime.cli import report
from dflash_runtime.cli.conversations import Turns, read_conversations
from dflash_runtime.comparison import Comparison, compare, warm_up
from dflash_runtime.completion import Step
from dflash_runtime.decoder import DEFAULT_MAX_NEW_TOKENS, Decoder, finish, sampling_parameters
from dflash_runtime.prompt import Prompt

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command's options that hold for every prompt."""

    max_new_tokens: int
    block_size: int | None
    sampling: SamplingParameters
    raw: bool
    as_json: bool


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def generate(
    bundle: Annotated[Path, typer.Argument(help="Folder that dflash-export wrote.", show_default=False)],
    prompt: Annotated[
        str | None, typer.Argument(help="What the user says; - reads it from stdin.", show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help='Many prompts, one object a line: {"prompt": "…"} or {"turns": ["…", "…"]}.',
            show_default=False,
        ),
    ] = None,
    do_compare: Annotated[
        bool, typer.Option("--compare", help="Generate with and without the drafter, and compare.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the prompt as plain text, without the chat template.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = DEFAULT_MAX_NEW_TOKENS,
    block_size: Annotated[
        int | None,
        typer.Option(
            help="Tokens checked at once; 1 is plain decoding. Default: what the drafter was trained for.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token; above, tokens are sampled.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest tokens of this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Least probability, as a part of the likeliest token's.")] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(help="The same seed gives the same answers. Default: a fresh one.", show_default=False),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads. Default: all.", show_default=False)] = None,
    backend: Annotated[str, typer.Option(help="Which engine runs the bundle.")] = "onnxruntime",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an answer on stdout, nothing else.")] = False,
) -> None:
    """Answer a prompt with a bundle, and print the text as it comes.

    On a terminal, tokens that the drafter guessed right are green, the others
    are the target's own. The text is the same with and without the drafter, at
    any block size: --compare shows it, and what the drafter gains.

    [bold]Examples[/]

    dflash-generate build/demo "Why is the sky blue?"

    dflash-generate build/demo "Tell a joke." --compare

    echo "def fibonacci(n):" | dflash-generate build/demo - --raw

    dflash-generate build/demo --prompts gsm8k.jsonl --compare --json > out.jsonl

    [bold]Exit codes[/]

    0 done; 1 the engine failed; 2 bad input; 3 outputs differ in --compare
    """
    conversations = read_conversations(prompt, prompts)
    sampling = sampling_parameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    settings = Settings(
        max_new_tokens=max_new_tokens, block_size=block_size, sampling=sampling, raw=raw, as_json=as_json
    )
    decoder = Decoder.load(bundle, backend=backend, threads=threads)
    if not do_compare:
        generate_all(decoder, conversations, settings)
    elif not compare_all(decoder, conversations, settings):
        raise typer.Exit(OUTPUTS_DIFFER)


def generate_all(decoder: Decoder, conversations: list[Turns], settings: Settings) -> None:
    """Answer every turn of every conversation."""
    on_step, err = _on_step(settings), Console(stderr=True)

    def answer(turn: str, prompt: Prompt) -> str:
        request = decoder.request(prompt, settings.max_new_tokens, settings.block_size, None, settings.sampling)
        completion = finish(decoder.run(request), on_step)
        if settings.as_json:
            report.show_json(turn, report.completion_json(completion))
        else:
            sys.stdout.write("\n")
            report.show_summary(err, completion)
        return completion.text

    for turns in conversations:
        _converse(decoder, turns, settings, answer)


def compare_all(decoder: Decoder, conversations: list[Turns], settings: Settings) -> bool:
    """Answer every turn of every conversation twice; returns whether all pairs are identical."""
    on_step, comparisons = _on_step(settings), list[Comparison]()

    def answer(turn: str, prompt: Prompt) -> str:
        if not comparisons:
            warm_up(decoder, prompt)
        comparisons.append(
            compare(
                decoder,
                prompt,
                max_new_tokens=settings.max_new_tokens,
                block_size=settings.block_size,
                sampling=settings.sampling,
                on_step=on_step,
            )
        )
        if settings.as_json:
            report.show_json(turn, report.comparison_json(comparisons[-1]))
        else:
            sys.stdout.write("\n\n")
        return comparisons[-1].drafted.text

    for turns in conversations:
        _converse(decoder, turns, settings, answer)
    if not settings.as_json:
        report.show_comparisons(Console(stderr=True), comparisons)
    return all(comparison.identical for comparison in comparisons)


def _on_step(settings: Settings) -> Callable[[Step], None]:
    if settings.as_json:
        return lambda step: None
    return report.show_in_colour if report.stdout_has_colours() else report.show_plainly


def _converse(decoder: Decoder, turns: Turns, settings: Settings, answer: Callable[[str, Prompt], str]) -> None:
    """Put each turn to `answer`, with all that was said before when the model has a chat template."""
    if settings.raw or decoder.encoder.template is None:
        if len(turns) > 1:
            raise RequestError("a conversation of several turns needs the chat template; leave out --raw")
        answer(turns[0], turns[0])
        return
    messages: list[dict[str, str]] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        text = answer(turn, list(messages))
        messages.append({"role": "assistant", "content": text})


def main() -> None:
    """The console script."""
    run_command(app, extra="ort")
