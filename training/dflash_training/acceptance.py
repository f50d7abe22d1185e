"""Acceptance length, simulated: the drafter's blocks against answers the target has already given."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dflash_training.batches import Batch
from dflash_training.blocks import Blocks, cut_blocks
from dflash_training.shape import DrafterShape

Predict = Callable[[Batch, Tensor], Tensor]
"""(batch of one answer, anchors [A]) -> predicted token ids [A, K]."""


@dataclass(slots=True)
class Tally:
    """Passes, tokens they emitted, and how many passes accepted at least k+1 drafted tokens."""

    passes: int = 0
    tokens: int = 0
    reached: list[int] = field(default_factory=list)

    def add(self, accepted: int, emitted: int, drafted: int) -> None:
        """Count one pass."""
        self.passes += 1
        self.tokens += emitted
        self.reached += [0] * (drafted - len(self.reached))
        for k in range(accepted):
            self.reached[k] += 1

    @property
    def acceptance_length(self) -> float:
        """Tokens per pass."""
        return self.tokens / max(self.passes, 1)

    @property
    def by_position(self) -> list[float]:
        """Share of passes that accept at least 1, 2, .. drafted tokens."""
        return [round(count / max(self.passes, 1), 4) for count in self.reached]


def accepted_counts(predicted: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor:
    """Length of the right prefix of each block. predicted [A, K], tokens [T], anchors [A] -> [A]."""
    positions = anchors[:, None] + torch.arange(1, predicted.shape[1], device=anchors.device)
    inside = positions < len(tokens)
    right = inside & (tokens[positions.clamp(max=len(tokens) - 1)] == predicted[:, 1:])
    return right.long().cumprod(1).sum(1)


def walk(accepted: Sequence[int], emits: int, drafted: int, tally: Tally) -> None:
    """Go through one answer as the decoding loop does: every pass emits what it accepted and one more.

    `accepted[i]` belongs to the anchor at answer token i; `emits` tokens follow the first one.
    """
    at = 0
    while at < emits:
        step = min(accepted[at] + 1, emits - at)
        tally.add(min(accepted[at], step), step, drafted)
        at += step


@torch.no_grad()
def simulate(predict: Predict, batches: Sequence[Batch], block_size: int) -> dict[str, Tally]:
    """Walk answers, one a batch, with blocks at every token; tallies by source and for 'all'."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    for batch in batches:
        tokens = batch.tokens[0, : int(batch.lengths[0])]
        anchors = torch.arange(int(batch.prompts[0]), len(tokens) - 1, device=tokens.device)
        if len(anchors):
            counts = accepted_counts(predict(batch, anchors), tokens, anchors).tolist()
            for name in ("all", batch.sources[0]):
                walk(counts, len(anchors), block_size - 1, tallies[name])
    return dict(tallies)


def all_blocks(batch: Batch, anchors: Tensor, shape: DrafterShape) -> Blocks:
    """Blocks at the given anchors of one answer, nothing revealed."""
    revealed = torch.zeros(1, len(anchors), shape.block_size, dtype=torch.bool, device=anchors.device)
    revealed[..., 0] = True
    return cut_blocks(batch.tokens, batch.lengths, anchors[None], revealed, shape, batch.taps.shape[1])
