"""`accept`: which drafted tokens are kept, and what the next block begins with. It has no weights.

Each variant finds the target's token after each row in its own way; what follows from them is the same.
"""

import torch
from torch import Tensor, nn

from dflash_engines.contract import FILTERED, GREEDY, SAMPLING, AcceptVariant
from dflash_export.programs import sampling


class Accept(nn.Module):
    """Greedy acceptance: the target's token after each row is the most likely one."""

    def __init__(self, mask_token_id: int) -> None:
        super().__init__()
        self.mask_token_id = mask_token_id

    def forward(
        self, logits: Tensor, block: Tensor, start: Tensor, forced: Tensor, count: Tensor, limit: Tensor
    ) -> tuple[Tensor, ...]:
        """sampled [B,R], accepted [B], next_tokens [B,R], next_start [B], next_length [B], finite [B]."""
        return self.verdict(logits.argmax(-1), logits, block, start, forced, count, limit)

    def verdict(
        self,
        sampled: Tensor,
        logits: Tensor,
        block: Tensor,
        start: Tensor,
        forced: Tensor,
        count: Tensor,
        limit: Tensor,
    ) -> tuple[Tensor, ...]:
        """The outputs, given the target's token after each row."""
        row = torch.arange(block.shape[1], device=block.device)
        kept = kept_rows(sampled, block, forced, count)
        bonus = torch.gather(sampled, 1, (kept - 1).clamp(min=0)[:, None])
        first = torch.where(count[:, None] > 0, bonus, block[:, :1])
        next_tokens = torch.where(row == 0, first, self.mask_token_id)
        next_start = torch.minimum(start + kept, limit)
        # A sum of magnitudes keeps every NaN and infinity; a maximum may drop NaN on some devices.
        finite = torch.isfinite(logits.abs().sum(-1)) | (row >= count[:, None])
        return (
            sampled,
            (kept - forced).clamp(min=0),
            next_tokens,
            next_start,
            torch.where(count > 0, next_start + block.shape[1], 1),
            finite.all(1),
        )


class AcceptSampling(Accept):
    """The target's token after each row is drawn; tokens below `min_p` of the likeliest are left out."""

    def forward(  # type: ignore[override]  # noqa: PLR0913, the contract's inputs
        self,
        logits: Tensor,
        block: Tensor,
        start: Tensor,
        forced: Tensor,
        count: Tensor,
        limit: Tensor,
        seed: Tensor,
        temperature: Tensor,
        min_p: Tensor,
    ) -> tuple[Tensor, ...]:
        """As in `Accept`."""
        weight = sampling.above(sampling.weights(logits, temperature), min_p[:, None, None])
        sampled = sampling.race(weight, seed, positions(start, block), temperature)
        return self.verdict(sampled, logits, block, start, forced, count, limit)


class AcceptSamplingFilters(Accept):
    """Like `AcceptSampling`, after `top_k` and then `top_p`."""

    def forward(  # type: ignore[override]  # noqa: PLR0913, the contract's inputs
        self,
        logits: Tensor,
        block: Tensor,
        start: Tensor,
        forced: Tensor,
        count: Tensor,
        limit: Tensor,
        seed: Tensor,
        temperature: Tensor,
        min_p: Tensor,
        top_k: Tensor,
        top_p: Tensor,
    ) -> tuple[Tensor, ...]:
        """As in `Accept`."""
        weight = sampling.filtered(sampling.weights(logits, temperature), top_k, top_p)
        weight = sampling.above(weight, min_p[:, None, None])
        sampled = sampling.race(weight, seed, positions(start, block), temperature)
        return self.verdict(sampled, logits, block, start, forced, count, limit)


def variants(mask_token_id: int) -> dict[AcceptVariant, Accept]:
    """The module of each of the contract's variants."""
    kinds = {GREEDY: Accept, SAMPLING: AcceptSampling, FILTERED: AcceptSamplingFilters}
    return {variant: kind(mask_token_id).eval() for variant, kind in kinds.items()}


def positions(start: Tensor, block: Tensor) -> Tensor:
    """Where the token after each row [B,R] of the block stands in its text."""
    return start[:, None] + 1 + torch.arange(block.shape[1], device=block.device)


def kept_rows(sampled: Tensor, block: Tensor, forced: Tensor, count: Tensor) -> Tensor:
    """How many leading rows of block [B,R] are right: forced ones, then as long as each equals the sample before it."""
    row = torch.arange(block.shape[1], device=block.device)
    before = torch.cat([block[:, :1], sampled[:, :-1]], 1)
    right = ((row < forced[:, None]) | (block == before)) & (row < count[:, None])
    return torch.where(right, block.shape[1], row).amin(1)
