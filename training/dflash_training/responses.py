"""Stage `responses`: the target's own answers to the prompts, greedy and sampled, with their states."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from dflash_training.generate import Answer, GenerateConfig, Generator, Request
from dflash_training.prompts import Conversation, PromptSource, encode_prompt, load_prompts
from dflash_training.store import (
    Response,
    read_responses,
    shard_names,
    write_manifest,
    write_responses,
    write_states,
)
from dflash_training.target import Target

OnAnswer = Callable[[Response], None]


def ignore_answer(_response: Response) -> None:
    """The default `OnAnswer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesConfig:
    """Which prompts, how often (one greedy answer and `samples` sampled ones), and where to.

    `skip`: files of answers whose prompts are left out here. `max_tokens`, `max_seconds`: ask nothing more
    after about so many.
    """

    out: Path
    prompts: tuple[PromptSource, ...]
    generate: GenerateConfig
    samples: int = 0
    temperature: float = 0.7
    seed: int = 0
    skip: tuple[Path, ...] = ()
    max_tokens: int | None = None
    max_seconds: float | None = None
    shard_size: int = 256


@dataclass(frozen=True, slots=True)
class Ask:
    """One answer to be made: a conversation up to its next turn, the prompt's ids, how to choose tokens."""

    conversation: Conversation
    prompt_ids: tuple[int, ...]
    seed: int
    temperature: float

    def response(self, response_ids: tuple[int, ...]) -> Response:
        """The answer with its provenance."""
        return Response(
            id=self.conversation.id,
            source=self.conversation.source,
            turn=len(self.conversation.answers),
            seed=self.seed,
            temperature=self.temperature,
            prompt_ids=self.prompt_ids,
            response_ids=response_ids,
        )


class _Plan:
    """Hands out requests and keeps what they were asked for; a further turn joins when its answer is there."""

    def __init__(self, target: Target, config: ResponsesConfig) -> None:
        self.tokenizer, self.config = target.tokenizer, config
        self.asked: list[Ask] = []
        self.follow_ups: list[Ask] = []
        self.fresh = self._first_turns()
        self.done = {response.key: response.response_ids for response in _finished(config.out)}
        self.skip = {response.prompt_ids for path in config.skip for response in read_responses(path)}
        self.begun = time.monotonic()
        self.made = sum(len(response.response_ids) for response in _finished(config.out))

    def _first_turns(self) -> Iterator[Ask]:
        """The greedy answers of all prompts, then each round of sampled ones."""
        conversations = load_prompts(self.config.prompts, seed=self.config.seed)
        for round_ in range(self.config.samples + 1):
            temperature = self.config.temperature if round_ else 0.0
            for conversation in conversations:
                yield self._ask(conversation, seed=self.config.seed + round_, temperature=temperature)

    def _ask(self, conversation: Conversation, *, seed: int, temperature: float) -> Ask:
        return Ask(conversation, tuple(encode_prompt(self.tokenizer, conversation)), seed, temperature)

    def _next(self) -> Ask | None:
        return self.follow_ups.pop() if self.follow_ups else next(self.fresh, None)

    def _wanted(self, ask: Ask) -> bool:
        """Whether the answer is still to be made; one made by an earlier run may lead to a further turn."""
        if (made := self.done.get(ask.response(()).key)) is not None:
            self._follow_up(ask, made)
            return False
        skipped = ask.temperature == 0 and ask.prompt_ids in self.skip
        return len(ask.prompt_ids) <= self.config.generate.max_prompt and not skipped

    def __iter__(self) -> "_Plan":
        return self

    def __next__(self) -> Request:
        """The next request. After StopIteration there may be more, once a further turn can be asked."""
        while not self._full() and (ask := self._next()) is not None:
            if self._wanted(ask):
                self.asked.append(ask)
                key = len(self.asked) - 1
                return Request(key=key, prompt_ids=ask.prompt_ids, temperature=ask.temperature, seed=ask.seed)
        raise StopIteration

    def _full(self) -> bool:
        config = self.config
        late = config.max_seconds is not None and time.monotonic() - self.begun >= config.max_seconds
        return late or (config.max_tokens is not None and self.made >= config.max_tokens)

    def finish(self, answer: Answer) -> Response:
        ask = self.asked[answer.request.key]
        self.made += len(answer.response_ids)
        self._follow_up(ask, answer.response_ids)
        return ask.response(answer.response_ids)

    def _follow_up(self, ask: Ask, response_ids: tuple[int, ...]) -> None:
        conversation = ask.conversation
        if len(conversation.answers) + 1 < len(conversation.turns):
            text = str(self.tokenizer.decode(list(response_ids), skip_special_tokens=True))
            longer = replace(conversation, answers=(*conversation.answers, text))
            self.follow_ups.append(self._ask(longer, seed=ask.seed, temperature=ask.temperature))


def _finished(folder: Path) -> Iterator[Response]:
    for name in shard_names(folder):
        yield from read_responses(folder / f"{name}.jsonl.gz")


def make_responses(target: Target, config: ResponsesConfig, *, on_answer: OnAnswer = ignore_answer) -> int:
    """Answer the prompts into shards under `config.out`, going on where an earlier run stopped.

    Returns:
        Response tokens in the folder, those of earlier runs included.
    """
    write_manifest(config.out, manifest(target, config.generate))
    plan = _Plan(target, config)
    answers = Generator(target, config.generate).run(plan)
    responses: list[Response] = []
    states: list[Tensor | None] = []
    for answer in answers:
        responses.append(plan.finish(answer))  # at once: the generator asks for a further turn next
        states.append(answer.states)
        on_answer(responses[-1])
        if len(responses) == config.shard_size:
            _write_shard(config.out, responses, states)
            responses, states = [], []
    if responses:
        _write_shard(config.out, responses, states)
    return plan.made


def manifest(target: Target, generate: GenerateConfig) -> dict[str, object]:
    """What all shards of a folder have in common."""
    return {
        "target": target.name,
        "target_revision": target.revision,
        "target_layer_ids": list(generate.target_layer_ids),
        "max_prompt": generate.max_prompt,
        "max_new": generate.max_new,
        "dtype": str(target.dtype).removeprefix("torch."),
    }


def _write_shard(folder: Path, responses: list[Response], states: list[Tensor | None]) -> None:
    names = shard_names(folder)
    name = f"{int(names[-1]) + 1 if names else 0:05}"
    kept = [state for state in states if state is not None]
    if kept:
        write_states(folder / f"{name}.states.npy", kept)
    write_responses(folder / f"{name}.jsonl.gz", responses)
