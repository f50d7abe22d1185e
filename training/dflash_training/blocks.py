"""Blocks cut from answers at random anchors, and who may see what.

Block n of anchor a holds x[a], then masks (or some of x[a+1..a+K-1], revealed). The label of row k is x[a+k].
A row sees the context strictly before its anchor, whose own state does not exist yet when drafting, and its
own block; never another block, however close.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_training.shape import DrafterShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A anchors a sequence, K = `block_size` rows each, flattened: Q = A*K.

    `tokens`, `labels`, `positions` [B, Q]; `scored` bool [B, Q]: rows with a label that the drafter must guess;
    `mask` bool [B, 1, Q, T + Q]: the context's columns, then the blocks'.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor
    scored: Tensor
    mask: Tensor
    block_size: int


def draw_anchors(first: Tensor, last: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different anchors of each sequence in first..last, sorted; -1 where there are fewer. [B, count]."""
    first, last = first.cpu(), last.cpu()  # drawn on the CPU: the same anchors on every device
    width = int(last.max()) + 1
    columns = torch.arange(width)
    inside = (columns >= first[:, None]) & (columns <= last[:, None])
    scores = torch.rand(len(first), width, generator=generator).masked_fill(~inside, -1.0)
    best = scores.topk(min(count, width), dim=1)
    anchors = torch.where(best.values >= 0, best.indices, -1).sort(1).values
    return torch.nn.functional.pad(anchors, (count - anchors.shape[1], 0), value=-1)


def draw_reveals(anchors: Tensor, block_size: int, share: float, generator: torch.Generator) -> Tensor:
    """Rows shown to the drafter: in `share` of the blocks, a random part of them. bool [B, A, K]."""
    batch, count = anchors.shape
    chosen = torch.rand(batch, count, 1, generator=generator) < share
    rate = torch.rand(batch, count, 1, generator=generator)
    revealed = chosen & (torch.rand(batch, count, block_size, generator=generator) < rate)
    revealed[..., 0] = True
    return revealed


def context_mask(anchors: Tensor, positions: Tensor, context: int, window: int) -> Tensor:
    """Context columns of each row: strictly before the anchor, within the window if any. bool [B, A, K, T]."""
    columns = torch.arange(context, device=anchors.device)
    seen = (columns < anchors[..., None, None]).expand(*positions.shape, context)
    return seen & (columns > positions[..., None] - window) if window else seen


def block_mask(anchors: Tensor, block_size: int, *, causal: bool) -> Tensor:
    """Rows of the same block, by the block's number and not by position. bool [A*K, A*K]."""
    row = torch.arange(anchors.shape[1] * block_size, device=anchors.device)
    same = row[:, None] // block_size == row // block_size
    return same.tril() if causal else same


def cut_blocks(
    tokens: Tensor, lengths: Tensor, anchors: Tensor, revealed: Tensor, shape: DrafterShape, context: int
) -> Blocks:
    """Blocks of the given anchors (-1: none), as long as `revealed` is wide.

    tokens [B, T'] padded, lengths [B] counted in tokens, anchors [B, A], revealed bool [B, A, K].
    """
    batch, block = len(tokens), revealed.shape[-1]
    positions = anchors.clamp(min=0)[..., None] + torch.arange(block, device=anchors.device)  # [B, A, K]
    inside = (positions < lengths[:, None, None]) & (anchors >= 0)[..., None]
    safe = positions.clamp(max=tokens.shape[1] - 1)
    labels = tokens.gather(1, safe.flatten(1)).view_as(positions)
    shown = torch.where(revealed & inside, labels, shape.mask_token_id)
    seen = context_mask(anchors, positions, context, shape.sliding_window)
    own = block_mask(anchors, block, causal=bool(shape.sliding_window))
    mask = torch.cat([seen.flatten(1, 2), own.expand(batch, -1, -1)], -1)  # [B, Q, T + Q]
    return Blocks(
        tokens=shown.flatten(1),
        labels=labels.flatten(1),
        positions=positions.flatten(1),
        scored=(inside & ~revealed).flatten(1),
        mask=mask[:, None],
        block_size=block,
    )
