"""Greedy answers of an engine, with its drafter: what a report compares."""

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_engines.engine import Engine

_SLOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Token ids, stop token left out, and the tokens gained by each verifying pass."""

    tokens: tuple[int, ...]
    acceptance_lengths: tuple[int, ...]


def answer(
    engine: Engine, prompt: Sequence[int], *, max_new_tokens: int, block_size: int, stops: frozenset[int]
) -> Answer:
    """The likeliest tokens after `prompt`, up to a stop token."""
    chunk = engine.limits.prefill_chunk
    last = (len(prompt) - 1) // chunk * chunk
    for start in range(0, last, chunk):
        engine.prefill(_SLOT, prompt[start : start + chunk], start)
    tokens = [int(engine.finish_prefill(_SLOT, prompt[last:], last).sampled[0, 0])]
    engine.place(_SLOT, tokens[0], len(prompt), engine.limits.max_len)
    gained = []
    while len(tokens) < max_new_tokens and not stops & set(tokens):
        engine.launch(block_size)
        found = engine.collect()
        gained.append(int(found.accepted[_SLOT]) + 1)
        tokens += found.sampled[_SLOT, : gained[-1]].tolist()
    engine.park(_SLOT)
    end = next((i for i, token in enumerate(tokens) if token in stops), len(tokens))
    return Answer(tokens=tuple(tokens[: min(end, max_new_tokens)]), acceptance_lengths=tuple(gained))
