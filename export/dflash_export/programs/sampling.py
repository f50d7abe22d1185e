"""Sampling as two exponential races: between groups of tokens, then between the tokens of the group that won.

Token i of weight w_i = exp(y_i - max y) wins a race with the largest w_i / E_i, E_i exponential noise of its own:
Gumbel-max, argmax(y + g) with g = -log E, both sides exponentiated. A group runs with the sum of its weights, so
that noise is made for groups + GROUP ids instead of for the whole vocabulary, which costs more than all the rest.
Both together draw token i with probability w_i / sum w: (sum of group / sum) * (w_i / sum of group).

A token of weight below 2^-63 never wins against the likeliest one's 1, since ratios of noise end at 22 / 4e-10.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_engines.sampling import GREEDY_BELOW
from dflash_export.programs import noise

GROUP = 64
_ALIGN = 16 * GROUP  # rows of the padded vocabulary are summed in the same order wherever they lie
_STEEPEST = 3e38  # in place of 1 / temperature: then one ulp of a logit makes a weight of 0


def weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """exp((logits - max) / temperature) for logits [B,R,V] and temperature [B], padded with 0 to [B,R,P].

    In a greedy slot they are 1 for the likeliest token, and 0 for the others.
    """
    steepness = torch.where(temperature < GREEDY_BELOW, _STEEPEST, 1 / temperature.clamp(min=GREEDY_BELOW))
    weight = torch.exp((logits - logits.amax(-1, keepdim=True)) * steepness[:, None, None])
    rest = padded(logits.shape[-1]) - logits.shape[-1]
    return F.pad(weight, (0, rest)) if rest else weight


def padded(vocab_size: int) -> int:
    """P, the size of padded weights."""
    return vocab_size + -vocab_size % _ALIGN


def above(weight: Tensor, threshold: Tensor) -> Tensor:
    """The weights [B,R,P] that reach the threshold [B,R,1], 0 for the others."""
    return weight * (weight >= threshold).float()


def race(weight: Tensor, seed: Tensor, position: Tensor, temperature: Tensor, first_id: int = 0) -> Tensor:
    """The token [B,R] drawn at position [B,R] with seed [B]; in a greedy slot the first of the likeliest.

    Its noise has the ids from `first_id` on.
    """
    grouped = weight.unflatten(-1, (-1, GROUP))  # [B, R, G, GROUP]
    greedy = (temperature < GREEDY_BELOW)[:, None, None]
    mass = grouped.sum(-1)
    mass = torch.where(greedy, mass.clamp(max=1), mass)  # equally good tokens count once
    group_ids = first_id + weight.shape[-1] + torch.arange(grouped.shape[2], device=weight.device)
    group = winner(mass, greedy, seed, position, group_ids)[..., None]  # [B, R, 1]
    members = torch.gather(grouped, 2, group[..., None].expand(-1, -1, -1, GROUP))[:, :, 0]
    token_ids = group * GROUP + torch.arange(GROUP, device=weight.device)
    best = winner(members, greedy, seed, position, first_id + token_ids if first_id else token_ids)
    return group[..., 0] * GROUP + best


def winner(weight: Tensor, greedy: Tensor, seed: Tensor, position: Tensor, ids: Tensor) -> Tensor:
    """The place [B,R] of the winner among weights [B,R,N] of `ids`; in a greedy slot of the first largest one."""
    exponential = noise.exponentials(noise.draws(seed, position, ids))
    return (weight / torch.where(greedy, 1, exponential)).argmax(-1)
