"""Choosing the next token from rows of logits: greedy or sampled, the same whatever shares the batch."""

import torch
from torch import Tensor

CANDIDATES = 8
SAMPLED_CANDIDATES = 64
_MASK = (1 << 31) - 1


def _scores(hidden: Tensor, head: Tensor, low_head: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best tokens by the low-precision head, scored again in fp32: ids and scores [B, count].

    bf16 logits are a sixteenth apart at 20, so the best token is chosen among those it can't tell apart.
    """
    rough = hidden.to(low_head.dtype) @ low_head.T  # [B, V]
    ids = rough.topk(count, dim=-1).indices
    exact = torch.einsum("bh,bch->bc", hidden.float(), head[ids].float())
    return ids, exact


def choose_greedy(hidden: Tensor, head: Tensor, low_head: Tensor) -> Tensor:
    """The most probable token of each row. hidden [B, H], head [V, H] -> [B]."""
    ids, scores = _scores(hidden, head, low_head, CANDIDATES)
    return ids.gather(1, scores.argmax(-1, keepdim=True))[:, 0]


def keyed_gumbel(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Gumbel noise that depends on (seed, position, token id) alone: [B], [B], [B, C] -> [B, C]."""
    state = (seeds[:, None] * 0x9E3779B1 + positions[:, None] * 0x85EBCA6B + ids * 0xC2B2AE35) & _MASK
    for multiplier in (0x45D9F3B, 0x119DE1F3, 0x3449F5):
        state = ((state ^ (state >> 15)) * multiplier) & _MASK
    uniform = (state.double() + 0.5) / (_MASK + 1)
    return -torch.log(-torch.log(uniform)).float()


def choose_sampled(
    hidden: Tensor, head: Tensor, low_head: Tensor, *, temperature: Tensor, seeds: Tensor, positions: Tensor
) -> Tensor:
    """A draw of softmax(logits / temperature) over the 64 best tokens; temperature 0 is greedy. All [B]."""
    ids, scores = _scores(hidden, head, low_head, SAMPLED_CANDIDATES)
    noisy = scores + temperature[:, None] * keyed_gumbel(seeds, positions, ids)
    return ids.gather(1, noisy.argmax(-1, keepdim=True))[:, 0]
