"""Sampling as two exponential races: between groups of tokens, then between the tokens of the group that won.

Token i of weight w_i = exp(y_i - max y) wins a race with the largest w_i / E_i, E_i exponential noise of its own:
Gumbel-max, argmax(y + g) with g = -log E, both sides exponentiated. A group runs with the sum of its weights, so
that noise is made for groups + GROUP ids instead of for the whole vocabulary, which costs more than all the rest.
Both together draw token i with probability w_i / sum w: (sum of group / sum) * (w_i / sum of group).

A filter is a threshold on the weight: tokens of equal weight stay or go together. A token of weight below 2^-63
never wins against the likeliest one's 1, since ratios of noise end at 22 / 4e-10.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_engines.sampling import GREEDY_BELOW
from dflash_export.programs import noise

GROUP = 64
_ALIGN = 16 * GROUP  # rows of the padded vocabulary are summed in the same order wherever they lie
_LOWEST = 2.0**-63
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


def filtered(weight: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The weights [B,R,P] left by top_k and then top_p (each [B]; 0 and 1 keep all), 0 for the others."""
    weight = above(weight, top_k_threshold(weight, top_k))
    return above(weight, top_p_threshold(weight, top_p))


def top_k_threshold(weight: Tensor, top_k: Tensor) -> Tensor:
    """The largest threshold [B,R,1] that top_k [B] weights reach: the k-th largest weight."""
    wanted = torch.where(top_k > 0, top_k, weight.shape[-1] + 1).float()[:, None, None]
    return _largest(weight, lambda v: (weight >= v).float().sum(-1, keepdim=True) >= wanted)


def top_p_threshold(weight: Tensor, top_p: Tensor) -> Tensor:
    """The largest threshold [B,R,1] for which the weights that reach it make the part top_p [B] of the whole."""
    part = torch.where(top_p < 1, top_p, 2)[:, None, None]
    wanted = weight.sum(-1, keepdim=True) * part
    return _largest(weight, lambda v: above(weight, v).sum(-1, keepdim=True) >= wanted)


def race(weight: Tensor, seed: Tensor, position: Tensor, temperature: Tensor) -> Tensor:
    """The token [B,R] drawn at position [B,R] with seed [B]; in a greedy slot the first of the likeliest."""
    grouped = weight.unflatten(-1, (-1, GROUP))  # [B, R, G, GROUP]
    greedy = (temperature < GREEDY_BELOW)[:, None, None]
    mass = grouped.sum(-1)
    mass = torch.where(greedy, mass.clamp(max=1), mass)  # equally good tokens count once
    group_ids = weight.shape[-1] + torch.arange(grouped.shape[2], device=weight.device)
    group = winner(mass, greedy, seed, position, group_ids)[..., None]  # [B, R, 1]
    members = torch.gather(grouped, 2, group[..., None].expand(-1, -1, -1, GROUP))[:, :, 0]
    token_ids = group * GROUP + torch.arange(GROUP, device=weight.device)
    best = winner(members, greedy, seed, position, token_ids)
    return group[..., 0] * GROUP + best


def winner(weight: Tensor, greedy: Tensor, seed: Tensor, position: Tensor, ids: Tensor) -> Tensor:
    """The place [B,R] of the winner among weights [B,R,N] of `ids`; in a greedy slot of the first largest one."""
    exponential = noise.exponentials(noise.draws(seed, position, ids))
    return (weight / torch.where(greedy, 1, exponential)).argmax(-1)


def _largest(weight: Tensor, enough: Callable[[Tensor], Tensor]) -> Tensor:
    """The largest float32 in 2^-63..1 that is `enough`, [B,R,1], or 2^-63; all below one that is enough are too.

    A bisection of the float's bits, first of the exponent and then of the mantissa, as engines can't sort a
    vocabulary: every candidate is an exact float32, and so is the result.
    """
    found = torch.full_like(weight[..., :1], _LOWEST)
    for doublings in (32, 16, 8, 4, 2, 1):
        candidate = found * 2.0**doublings
        found = torch.where(enough(candidate), candidate, found)
    step = found
    for _ in range(23):
        step = step * 0.5
        candidate = found + step
        found = torch.where(enough(candidate), candidate, found)
    return found
