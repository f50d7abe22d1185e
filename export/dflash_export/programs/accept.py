"""`accept`: which drafted tokens are kept, and what the next block begins with. It has no weights."""

import torch
from torch import Tensor, nn


class Accept(nn.Module):
    """Greedy acceptance: the target's token after each row is the most likely one."""

    def __init__(self, mask_token_id: int) -> None:
        super().__init__()
        self.mask_token_id = mask_token_id

    def forward(
        self, logits: Tensor, block: Tensor, start: Tensor, forced: Tensor, count: Tensor, limit: Tensor
    ) -> tuple[Tensor, ...]:
        """sampled [B,R], accepted [B], next_tokens [B,R], next_start [B], finite [B]."""
        sampled = logits.argmax(-1)
        row = torch.arange(block.shape[1], device=block.device)
        kept = kept_rows(sampled, block, forced, count)
        bonus = torch.gather(sampled, 1, (kept - 1).clamp(min=0)[:, None])
        first = torch.where(count[:, None] > 0, bonus, block[:, :1])
        next_tokens = torch.where(row == 0, first, self.mask_token_id)
        # A sum of magnitudes keeps every NaN and infinity; a maximum may drop NaN on some devices.
        finite = torch.isfinite(logits.abs().sum(-1)) | (row >= count[:, None])
        return (
            sampled,
            (kept - forced).clamp(min=0),
            next_tokens,
            torch.minimum(start + kept, limit),
            finite.all(1),
        )


def kept_rows(sampled: Tensor, block: Tensor, forced: Tensor, count: Tensor) -> Tensor:
    """How many leading rows of block [B,R] are right: forced ones, then as long as each equals the sample before it."""
    row = torch.arange(block.shape[1], device=block.device)
    before = torch.cat([block[:, :1], sampled[:, :-1]], 1)
    right = ((row < forced[:, None]) | (block == before)) & (row < count[:, None])
    return torch.where(right, block.shape[1], row).amin(1)
