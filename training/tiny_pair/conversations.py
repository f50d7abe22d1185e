"""Whole conversations: a system turn now and then, and one to many questions with their answers."""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tiny_pair.questions import QUESTIONS, Exchange

MANNERS = {
    "You are a helpful assistant.": "{}",
    "End every answer with a smile.": "{} 🙂",
    "You are a pirate.": "Arr! {}",
    "Be very polite.": "With pleasure. {}",
}
LENGTHS = (1,) * 12 + (2,) * 4 + (3,) * 2 + (8,)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    content: str


def conversation(rng: Random) -> list[Turn]:
    """A system turn (in a third of all cases) that sets the manner of all answers, then exchanges."""
    exchanges = [exchange for _ in range(rng.choice(LENGTHS)) for exchange in _exchanges(rng)]
    if rng.random() >= 1 / 3:
        return _turns(exchanges, "{}")
    system, manner = rng.choice(list(MANNERS.items()))
    return [Turn("system", system), *_turns(exchanges, manner)]


def _exchanges(rng: Random) -> list[Exchange]:
    exchange = rng.choice(QUESTIONS)(rng)
    if exchange.follow_up is not None and rng.random() < 0.3:
        return [exchange, exchange.follow_up]
    return [exchange]


def _turns(exchanges: list[Exchange], manner: str) -> list[Turn]:
    return [
        turn
        for exchange in exchanges
        for turn in (Turn("user", exchange.question), Turn("assistant", manner.format(exchange.answer)))
    ]


def conversations(seed: str) -> Iterator[list[Turn]]:
    """An endless stream; another seed gives another one."""
    rng = Random(seed)
    while True:
        yield conversation(rng)


def prompts(seed: str, count: int, *, without: Collection[tuple[str, ...]] = ()) -> list[tuple[str, ...]]:
    """The users' turns of conversations with one or two questions, each once and none of `without`.

    System turns are left out.
    """
    found: dict[tuple[str, ...], None] = {}
    for turns in conversations(seed):
        asked = tuple(turn.content for turn in turns if turn.role == "user")
        if len(asked) <= 2 and asked not in without:
            found[asked] = None
        if len(found) == count:
            return list(found)
    raise AssertionError("the stream of conversations has no end")


def write_prompts(path: Path, asked: Iterable[tuple[str, ...]]) -> None:
    """JSONL with `id` and `turns`."""
    rows = ({"id": f"tiny/{number}", "turns": turns} for number, turns in enumerate(asked))
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
