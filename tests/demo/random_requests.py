"""Requests with any rules at once, in any company: drafted answers must be what plain decoding writes alone."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.backend import Options
from dflash_engines.controls import Controls
from dflash_engines.host_engine import HostEngine
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_engines.sampling import MAX_SEED, SamplingParameters
from dflash_runtime.completion import Step
from dflash_runtime.decoder import Decoder, constrained
from dflash_runtime.loop import DecodeLoop, Failure
from dflash_runtime.request import Request
from dflash_runtime.token_logprobs import TokenLogprobs

SLOTS, LARGEST_BLOCK, CHUNKS = 4, 16, (2, 7, 33)
NEW_TOKENS = 24
FORMATS: tuple[dict[str, Any], ...] = (
    {"type": "choice", "choice": ["yes", "no", "yes, but not today", "a fine day"]},
    {"type": "regex", "regex": r"([A-Z][a-z]{1,6}[ ,.]){1,4}[0-9]*"},
    {"type": "grammar", "grammar": 'start: "- " item ("\\n- " item)*\nitem: /[^\\n]{1,9}/'},
    {"type": "json_schema", "json_schema": {"schema": {
        "type": "object", "required": ["name", "age"],
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
    }}},
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What became of a request."""

    steps: list[Step] = field(default_factory=list)
    error: str | None = None

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.token_ids]

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def logprobs(self) -> Iterator[TokenLogprobs]:
        return (found for step in self.steps for found in step.logprobs)

    @property
    def accepted(self) -> int:
        return sum(step.accepted for step in self.steps)


@dataclass(slots=True)
class EveryThird:
    """A toy grammar's state: what may follow depends on the sum of all tokens so far."""

    vocab_size: int
    total: int = 0
    complete: bool = False
    fault: str | None = None

    def steer(self, drafted: Sequence[int]) -> list[int]:
        return list(drafted)

    def masks(self, drafted: Sequence[int]) -> NDArray[np.int32]:
        totals = self.total + np.cumsum([0, *drafted])
        allowed = (np.arange(-(-self.vocab_size // 32) * 32) + totals[:, None]) % 3 > 0
        return np.packbits(allowed, axis=-1, bitorder="little").view(np.int32)

    def commit(self, token: int) -> None:
        assert (token + self.total) % 3 > 0
        self.total += token


@dataclass(frozen=True, slots=True)
class ToyGrammar:
    vocab_size: int

    def start(self, stop_token_ids: Collection[int]) -> EveryThird:
        return EveryThird(self.vocab_size)


def random_controls(draw: random.Random, token: Callable[[], int]) -> Controls:
    """Half of the rules are neutral, each by itself."""
    return Controls(
        logit_bias=tuple((token(), draw.uniform(-6, 6)) for _ in range(draw.choice([0, 0, 30]))),
        bad_token_ids=frozenset(token() for _ in range(draw.choice([0, 0, 50]))),
        min_tokens=draw.choice([0, 0, 5, 12]),
        repetition_penalty=draw.choice([1.0, 1.0, 0.8, 1.3]),
        frequency_penalty=draw.choice([0.0, 0.0, 0.4, -0.3]),
        presence_penalty=draw.choice([0.0, 0.0, 0.7, -0.5]),
        logprobs=draw.choice([None, None, 0, 3, 20]),
    )


def random_sampling(draw: random.Random, token: Callable[[], int]) -> SamplingParameters:
    """Without controls in two of five, so that every accept program is used."""
    return SamplingParameters(
        temperature=draw.choice([0.0, 0.0, 0.3, 0.8, 1.0, 1.6]),
        top_k=draw.choice([0, 0, 1, 7, 300]),
        top_p=draw.choice([1.0, 1.0, 0.5, 0.95]),
        min_p=draw.choice([0.0, 0.0, 0.05]),
        seed=draw.randint(0, MAX_SEED),
        controls=Controls() if draw.random() < 0.4 else random_controls(draw, token),
    )


def random_request(draw: random.Random, prompts: Sequence[Sequence[int]], decoder: Decoder) -> Request:
    """Any rules, stop tokens and strings; in a third, a grammar."""
    manifest = decoder.engine.bundle.manifest
    token: Callable[[], int] = lambda: draw.randrange(manifest.geometry.vocab_size)  # noqa: E731
    prompt = draw.choice(prompts)
    request = decoder.request(
        prompt[: draw.randint(1, len(prompt))],
        draw.randint(1, NEW_TOKENS),
        None,
        draw.choice([(), (token(),), None, tuple(token() for _ in range(40))]),
        random_sampling(draw, token),
        stop=draw.choice([None, None, random_strings(draw, decoder.tokenizer.decode(prompt))]),
        response_format=draw.choice([None, None, draw.choice(FORMATS)]),
        draft_temperature=draw.choice([0.0, 0.9]) if "draft_noise" in manifest.programs else 0.0,
    )
    request = replace(request, block_size=draw.randint(1, LARGEST_BLOCK))
    if request.grammar is not None or draw.random() < 0.9:
        return request
    return replace(request, sampling=constrained(request.sampling), grammar=ToyGrammar(manifest.geometry.vocab_size))


def random_strings(draw: random.Random, text: str) -> list[str]:
    """Pieces of a text like the answers, which will come up before long."""
    starts = [draw.randrange(len(text)) for _ in range(draw.randint(1, 4))]
    return [text[start : start + draw.randint(1, 4)] for start in starts]


def engines(decoder: Decoder) -> list[HostEngine]:
    """One for each size of prefill chunks."""
    bundle = decoder.engine.bundle
    programs, limits = OnnxRuntimePrograms(bundle, Options(threads=1)), bundle.manifest.limits
    sizes = tuple(range(2, LARGEST_BLOCK + 1))
    return [HostEngine(bundle, programs, replace(limits, max_batch=SLOTS, prefill_chunk=chunk, block_sizes=sizes))
            for chunk in CHUNKS]  # fmt: skip


def together(engine: HostEngine, decoder: Decoder, requests: Sequence[Request], draw: random.Random) -> list[Outcome]:
    """Each request in a slot of its own; they join at random steps."""
    loop, outcomes = DecodeLoop(engine), [Outcome() for _ in requests]
    answers = [decoder.answer(request) for request in requests]
    slots, waiting = draw.sample(range(SLOTS), len(requests)), list(range(len(requests)))
    while waiting or any(slot.request is not None for slot in loop.slots):
        while waiting and draw.random() < 0.6:
            index = waiting.pop(0)
            loop.admit(slots[index], requests[index])
        for event in loop.step():
            index = slots.index(event.slot)
            if isinstance(event, Failure):
                outcomes[index].error = str(event.error)
                continue
            step = answers[index].push(event)
            outcomes[index].steps.append(step)
            if step.finish_reason is not None and event.finish_reason is None:
                loop.release(event.slot)
    return outcomes


def assert_same(found: Outcome, wanted: Outcome, request: Request) -> None:
    """Where the rules came to forbid every token, the pass that found out is lost, and may have been longer."""
    assert found.error == wanted.error, request
    if wanted.error is not None:
        assert wanted.tokens[: len(found.tokens)] == found.tokens
        return
    assert (found.tokens, found.text) == (wanted.tokens, wanted.text), request
    assert found.steps[-1].finish_reason == wanted.steps[-1].finish_reason
    assert not any(string in found.text for string in request.stop_strings)
    pairs = list(zip(found.logprobs, wanted.logprobs, strict=True))
    assert len(pairs) == (0 if request.sampling.controls.logprobs is None else len(wanted.tokens))
    for a, b in pairs:
        assert (a.token_id, [token for token, _ in a.top]) == (b.token_id, [token for token, _ in b.top])
        np.testing.assert_allclose([a.logprob, *(p for _, p in a.top)], [b.logprob, *(p for _, p in b.top)], atol=2e-6)


def check(decoder: Decoder, prompts: Sequence[Sequence[int]], count: int, seed: int) -> int:
    """`count` requests in groups of 1 to 4; returns how many drafted tokens were accepted in all."""
    draw, made, accepted = random.Random(seed), engines(decoder), 0
    while count > 0:
        group = [random_request(draw, prompts, decoder) for _ in range(draw.randint(1, SLOTS))]
        found = together(draw.choice(made), decoder, group, draw)
        for request, outcome in zip(group, found, strict=True):
            alone = together(made[-1], decoder, [replace(request, block_size=1)], random.Random(0))[0]
            assert_same(outcome, alone, request)
            accepted += outcome.accepted
        count -= len(group)
    return accepted
