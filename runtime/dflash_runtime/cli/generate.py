"""dflash-generate: answer prompts with a bundle, and compare with plain decoding."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console

from dflash_engines.command import OUTPUTS_DIFFER, run_command
from dflash_engines.errors import RequestError
from dflash_engines.sampling import SamplingParameters
from dflash_runtime.cli import options, report
from dflash_runtime.cli.controls import controls
from dflash_runtime.cli.conversations import Conversation, read_conversations
from dflash_runtime.cli.response_format import response_format
from dflash_runtime.comparison import Comparison, compare, warm_up
from dflash_runtime.completion import Step
from dflash_runtime.decoder import DEFAULT_MAX_NEW_TOKENS, Decoder, finish, sampling_parameters
from dflash_runtime.prompt import Prompt
from dflash_runtime.request import Request

EPILOG = """
[bold]Examples[/]

dflash-generate build/demo "Why is the sky blue?"

dflash-generate build/demo "Tell a joke." --compare

echo "def fibonacci(n):" | dflash-generate build/demo - --raw

dflash-generate build/demo "Is water wet?" --choice yes --choice no

dflash-generate build/demo "Tell a joke." --temperature 0.8 --presence-penalty 0.5 --logprobs 3 --json

dflash-generate build/demo --prompts gsm8k.jsonl --compare --json > out.jsonl

[bold]Exit codes[/]

0 done; 1 the engine failed; 2 bad input; 3 outputs differ in --compare
"""
app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command's options that hold for every prompt."""

    max_new_tokens: int
    block_size: int | None
    draft_temperature: float | None
    stop_token_ids: tuple[int, ...] | None
    stop: tuple[str, ...]
    response_format: dict[str, Any] | None
    sampling: SamplingParameters
    raw: bool
    as_json: bool

    def request(self, decoder: Decoder, prompt: Prompt) -> Request:
        """What these options ask of `prompt`. Raises RequestError."""
        return decoder.request(prompt, self.max_new_tokens, self.block_size, self.stop_token_ids, self.sampling,
                               stop=self.stop, response_format=self.response_format,
                               draft_temperature=self.draft_temperature)  # fmt: skip


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def generate(
    bundle: options.Bundle,
    prompt: options.PromptText = None,
    prompts: options.PromptsFile = None,
    do_compare: options.Compare = False,
    raw: options.Raw = False,
    max_new_tokens: options.MaxNewTokens = DEFAULT_MAX_NEW_TOKENS,
    block_size: options.BlockSize = None,
    denoise_steps: options.DenoiseSteps = 1,
    draft_temperature: options.DraftTemperature = None,
    stop_token_ids: options.StopTokenIds = None,
    stop: options.Stop = None,
    json_schema: options.JsonSchema = None,
    regex: options.Regex = None,
    grammar: options.Grammar = None,
    choice: options.Choice = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    logit_bias: options.LogitBias = None,
    bad_token_ids: options.BadTokenIds = None,
    min_tokens: options.MinTokens = 0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    presence_penalty: options.PresencePenalty = 0.0,
    logprobs: options.Logprobs = None,
    threads: options.Threads = None,
    backend: options.Backend = "onnxruntime",
    as_json: options.AsJson = False,
) -> None:
    """Answer a prompt with a bundle, and print the text as it comes.

    On a terminal, tokens that the drafter guessed right are green, the others
    are the target's own. The text is the same with and without the drafter, at
    any block size: --compare shows it, and what the drafter gains.
    """
    conversations = read_conversations(prompt, prompts)
    rules = controls(logit_bias=logit_bias or (), bad_token_ids=bad_token_ids or (), min_tokens=min_tokens,
                     repetition_penalty=repetition_penalty, frequency_penalty=frequency_penalty,
                     presence_penalty=presence_penalty, logprobs=logprobs, as_json=as_json)  # fmt: skip
    sampling = sampling_parameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
                                   denoise_steps=denoise_steps, controls=rules)  # fmt: skip
    structure = response_format(json_schema=json_schema, regex=regex, grammar=grammar, choices=choice or ())
    settings = Settings(max_new_tokens=max_new_tokens, block_size=block_size, draft_temperature=draft_temperature,
                        stop_token_ids=tuple(stop_token_ids) if stop_token_ids else None,
                        stop=tuple(stop or ()), response_format=structure, sampling=sampling,
                        raw=raw, as_json=as_json)  # fmt: skip
    decoder = Decoder.load(bundle, backend=backend, threads=threads)
    if not do_compare:
        generate_all(decoder, conversations, settings)
    elif not compare_all(decoder, conversations, settings):
        raise typer.Exit(OUTPUTS_DIFFER)


def generate_all(decoder: Decoder, conversations: list[Conversation], settings: Settings) -> None:
    """Answer every turn of every conversation."""
    on_step, err = _on_step(settings), Console(stderr=True)

    def answer(turn: str, prompt: Prompt) -> str:
        completion = finish(decoder.run(settings.request(decoder, prompt)), on_step)
        if settings.as_json:
            report.show_json(turn, report.completion_json(completion))
        else:
            sys.stdout.write("\n")
            report.show_summary(err, completion)
        return completion.text

    for conversation in conversations:
        _converse(decoder, conversation, settings, answer)


def compare_all(decoder: Decoder, conversations: list[Conversation], settings: Settings) -> bool:
    """Answer every turn of every conversation twice; returns whether all pairs are identical."""
    on_step, comparisons = _on_step(settings), list[Comparison]()

    def answer(turn: str, prompt: Prompt) -> str:
        request = settings.request(decoder, prompt)
        if not comparisons:
            warm_up(decoder, prompt)
        comparisons.append(compare(decoder, request, on_step))
        if settings.as_json:
            report.show_json(turn, report.comparison_json(comparisons[-1]))
        else:
            sys.stdout.write("\n\n")
        return comparisons[-1].drafted.text

    for conversation in conversations:
        _converse(decoder, conversation, settings, answer)
    if not settings.as_json:
        report.show_comparisons(Console(stderr=True), comparisons)
    return all(comparison.identical for comparison in comparisons)


def _on_step(settings: Settings) -> Callable[[Step], None]:
    if settings.as_json:
        return lambda step: None
    return report.show_in_colour if report.stdout_has_colours() else report.show_plainly


def _converse(
    decoder: Decoder, conversation: Conversation, settings: Settings, answer: Callable[[str, Prompt], str]
) -> None:
    """Put each turn to `answer`, with all that was said before when the model has a chat template."""
    with conversation.named_in_errors():
        if settings.raw or decoder.encoder.template is None:
            if len(conversation.turns) > 1:
                raise RequestError("a conversation of several turns needs the chat template; leave out --raw")
            answer(conversation.turns[0], conversation.turns[0])
            return
        messages: list[dict[str, str]] = []
        for turn in conversation.turns:
            messages.append({"role": "user", "content": turn})
            text = answer(turn, list(messages))
            messages.append({"role": "assistant", "content": text})


def main() -> None:
    """The console script."""
    run_command(app, extra="ort")
