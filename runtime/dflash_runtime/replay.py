"""Recorded acceptance: what each block size would have gained at every token of an answer, and replays of it.

An answer doesn't depend on block sizes, so neither does what a drafter would propose at one of its tokens. A replay
walks an answer as the decode loop does, under any rule of choosing block sizes, and adds up a cost table's seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dflash_runtime.block_size import BlockSizes
from dflash_runtime.cost_table import CostTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One recorded answer."""

    set_name: str  # of the prompts it is from
    prompt_tokens: int
    accepted: NDArray[np.uint8]  # [tokens but the last, block sizes] drafts kept with that token as anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Answers, and the block sizes that were tried at each token. Sizes differ: a block attends to all of itself."""

    block_sizes: tuple[int, ...]  # ascending, from 2
    answers: tuple[Answer, ...]

    def save(self, path: Path) -> None:
        """Write as one .npz."""
        accepted = np.concatenate([answer.accepted for answer in self.answers])
        np.savez_compressed(
            path,
            allow_pickle=False,
            block_sizes=self.block_sizes,
            sets=[answer.set_name for answer in self.answers],
            prompt_tokens=[answer.prompt_tokens for answer in self.answers],
            anchors=[len(answer.accepted) for answer in self.answers],
            accepted=accepted,
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as stored:
            fields: dict[str, Any] = {name: stored[name] for name in stored}
        parts = np.split(fields["accepted"], np.cumsum(fields["anchors"])[:-1])
        answers = (
            Answer(set_name=str(name), prompt_tokens=int(tokens), accepted=part)
            for name, tokens, part in zip(fields["sets"], fields["prompt_tokens"], parts, strict=True)
        )
        return cls(block_sizes=tuple(int(size) for size in fields["block_sizes"]), answers=tuple(answers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a way of choosing block sizes made of some answers."""

    tokens: int
    seconds: float
    block_sizes: tuple[int, ...]  # of each pass

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed."""
        return self.tokens / self.seconds


Choose = Callable[[int, int], int]  # live tokens, anchor's index -> block size
Observe = Callable[[int, int], object]  # block size, tokens gained


def walk(answer: Answer, sizes: Sequence[int], costs: CostTable, choose: Choose, observe: Observe) -> Replayed:
    """One answer, as the loop would decode it alone."""
    at, seconds, used = 0, 0.0, list[int]()
    places = {1: None} | {size: i for i, size in enumerate(sizes)}
    while at < len(answer.accepted):
        length = answer.prompt_tokens + at
        size = choose(length, at)
        place = places[size]
        gained = 1 if place is None else int(answer.accepted[at, place]) + 1
        seconds += float(costs.at(slots=1, length=length).total()[costs.block_sizes.index(size)])
        observe(size, gained)
        used.append(size)
        at += gained
    return Replayed(tokens=len(answer.accepted), seconds=seconds, block_sizes=tuple(used))


def fixed(recording: Recording, costs: CostTable, block_size: int) -> list[Replayed]:
    """Every answer at one block size."""
    return [
        walk(answer, recording.block_sizes, costs, lambda *_: block_size, lambda *_: None)
        for answer in recording.answers
    ]


def adaptive(recording: Recording, costs: CostTable, sizes: BlockSizes | None = None) -> list[Replayed]:
    """Every answer in turn, with the block sizes that the decode loop would choose."""
    chooser = BlockSizes(costs) if sizes is None else sizes
    found = []
    for answer in recording.answers:
        chooser.admit(0)
        found.append(
            walk(
                answer,
                recording.block_sizes,
                costs,
                lambda length, _: chooser.choose({0: length}, denoise_steps=1),
                lambda size, gained: chooser.observe(0, block_size=size, gained=gained),
            )
        )
    return found


def together(replayed: Sequence[Replayed]) -> Replayed:
    """The sum of several."""
    return Replayed(
        tokens=sum(r.tokens for r in replayed),
        seconds=sum(r.seconds for r in replayed),
        block_sizes=tuple(size for r in replayed for size in r.block_sizes),
    )
