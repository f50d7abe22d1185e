"""Requests with any rules at once, in any company: drafted answers must be what plain decoding writes alone."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.controls import Controls
from dflash_engines.host_engine import HostEngine
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_engines.sampling import MAX_SEED, SamplingParameters
from dflash_runtime.loop import DecodeLoop, Progress
from dflash_runtime.request import Request
from dflash_runtime.token_logprobs import TokenLogprobs

SLOTS, LARGEST_BLOCK, CHUNKS = 4, 16, (2, 7, 33)
NEW_TOKENS = 24
Events = list[Progress]


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


def random_request(draw: random.Random, prompts: Sequence[Sequence[int]], bundle: Bundle) -> Request:
    """Half of the rules are neutral, each by itself, so that every accept program is used."""
    manifest = bundle.manifest
    token: Callable[[], int] = lambda: draw.randrange(manifest.geometry.vocab_size)  # noqa: E731
    stops = frozenset(draw.choice([(), (token(),), manifest.stop_token_ids, tuple(token() for _ in range(40))]))
    constrained = draw.random() < 0.2
    plain = draw.random() < 0.4
    controls = Controls(
        logit_bias=tuple((token(), draw.uniform(-6, 6)) for _ in range(draw.choice([0, 0, 30]))),
        bad_token_ids=frozenset(token() for _ in range(draw.choice([0, 0, 50]))),
        min_tokens=draw.choice([0, 0, 5, 12]),
        end_token_ids=stops,
        repetition_penalty=draw.choice([1.0, 1.0, 0.8, 1.3]),
        frequency_penalty=draw.choice([0.0, 0.0, 0.4, -0.3]),
        presence_penalty=draw.choice([0.0, 0.0, 0.7, -0.5]),
        logprobs=draw.choice([None, None, 0, 3, 20]),
    )
    sampling = SamplingParameters(
        temperature=draw.choice([0.0, 0.0, 0.3, 0.8, 1.0, 1.6]),
        top_k=draw.choice([0, 0, 1, 7, 300]),
        top_p=draw.choice([1.0, 1.0, 0.5, 0.95]),
        min_p=draw.choice([0.0, 0.0, 0.05]),
        seed=draw.randint(0, MAX_SEED),
        draft_temperature=draw.choice([0.0, 0.9]) if "draft_noise" in manifest.programs else 0.0,
        controls=replace(Controls() if plain else controls, constrained=constrained),
    )
    prompt = draw.choice(prompts)
    return Request(
        tokens=tuple(prompt[: draw.randint(1, len(prompt))]),
        max_new_tokens=draw.randint(1, NEW_TOKENS),
        stop_token_ids=stops,
        block_size=draw.randint(1, LARGEST_BLOCK),
        sampling=sampling,
        grammar=ToyGrammar(manifest.geometry.vocab_size) if constrained else None,
    )


def engines(bundle: Bundle) -> list[HostEngine]:
    """One for each size of prefill chunks."""
    programs, limits = OnnxRuntimePrograms(bundle, Options(threads=1)), bundle.manifest.limits
    sizes = tuple(range(2, LARGEST_BLOCK + 1))
    return [HostEngine(bundle, programs, replace(limits, max_batch=SLOTS, prefill_chunk=chunk, block_sizes=sizes))
            for chunk in CHUNKS]  # fmt: skip


def together(engine: HostEngine, requests: Sequence[Request], draw: random.Random) -> list[Events]:
    """Each request in a slot of its own; they join at random steps."""
    loop, events = DecodeLoop(engine), list[Events]([] for _ in requests)
    slots, waiting = draw.sample(range(SLOTS), len(requests)), list(range(len(requests)))
    while waiting or any(slot.request is not None for slot in loop.slots):
        while waiting and draw.random() < 0.6:
            index = waiting.pop(0)
            loop.admit(slots[index], requests[index])
        for event in loop.step():
            assert isinstance(event, Progress), event.error
            events[slots.index(event.slot)].append(event)
    return events


def tokens_of(events: Events) -> tuple[list[int], str | None]:
    return [token for event in events for token in event.token_ids], events[-1].finish_reason


def logprobs_of(events: Events) -> Iterator[TokenLogprobs]:
    return (found for event in events for found in event.logprobs)


def assert_same(found: Events, wanted: Events, request: Request) -> None:
    assert tokens_of(found) == tokens_of(wanted), request
    pairs = list(zip(logprobs_of(found), logprobs_of(wanted), strict=True))
    assert len(pairs) == (0 if request.sampling.controls.logprobs is None else len(tokens_of(wanted)[0]))
    for a, b in pairs:
        assert (a.token_id, [token for token, _ in a.top]) == (b.token_id, [token for token, _ in b.top])
        np.testing.assert_allclose([a.logprob, *(p for _, p in a.top)], [b.logprob, *(p for _, p in b.top)], atol=2e-6)


def check(bundle: Bundle, prompts: Sequence[Sequence[int]], count: int, seed: int) -> int:
    """`count` requests in groups of 1 to 4; returns how many drafted tokens were accepted in all."""
    draw, made, accepted = random.Random(seed), engines(bundle), 0
    while count > 0:
        group = [random_request(draw, prompts, bundle) for _ in range(draw.randint(1, SLOTS))]
        found = together(draw.choice(made), group, draw)
        for request, events in zip(group, found, strict=True):
            alone = together(made[-1], [replace(request, block_size=1)], random.Random(0))[0]
            assert_same(events, alone, request)
            accepted += sum(event.accepted for event in events)
        count -= len(group)
    return accepted
