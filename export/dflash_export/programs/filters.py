"""top_k and top_p as a threshold on the weight: tokens of equal weight stay or go together.

The threshold is nearly always among the few largest weights, which are sorted. Where it isn't (top_p of a flat
distribution, a very large top_k), it is found by bisection over all of them: ten times the work, and just as exact,
without sorting a vocabulary, which engines can't. A row's result depends on nothing but the row.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dflash_export.programs.sampling import above

CANDIDATES = 128
_LOWEST = 2.0**-63  # smaller weights never win
Enough = Callable[[Tensor], Tensor]


def filtered(weight: Tensor, top_k: Tensor, top_p: Tensor, in_use: Tensor) -> Tensor:
    """The weights [B,R,P] left by top_k and then top_p (each [B]; 0 and 1 keep all), 0 for the others.

    Rows that are not `in_use` [B,R] may keep anything.
    """
    best = torch.topk(weight, min(CANDIDATES, weight.shape[-1])).values  # [B, R, CANDIDATES], the largest first
    unused = ~in_use[..., None]
    threshold = top_k_threshold(weight, best, top_k, unused)
    weight, best = above(weight, threshold), above(best, threshold)
    return above(weight, top_p_threshold(weight, best, top_p, unused))


def top_k_threshold(weight: Tensor, best: Tensor, top_k: Tensor, unused: Tensor) -> Tensor:
    """The largest threshold [B,R,1] that top_k [B] weights reach: the k-th largest weight."""
    wanted = top_k[:, None, None].expand(-1, weight.shape[1], 1)
    among = torch.gather(best, 2, (wanted - 1).clamp(min=0, max=best.shape[-1] - 1))
    among = torch.where(wanted > 0, among.clamp(min=_LOWEST), _LOWEST)

    def search(weight: Tensor, wanted: Tensor) -> Tensor:
        return _largest(weight, lambda v: (weight >= v).float().sum(-1, keepdim=True) >= wanted)

    return _unless_all(unused | (wanted <= best.shape[-1]), among, search, weight, wanted.float())


def top_p_threshold(weight: Tensor, best: Tensor, top_p: Tensor, unused: Tensor) -> Tensor:
    """The largest threshold [B,R,1] for which the weights that reach it make the part top_p [B] of the whole."""
    wanted = weight.sum(-1, keepdim=True) * top_p[:, None, None]
    short = torch.cumsum(best, -1) < wanted  # [B, R, CANDIDATES]
    missing = short.long().sum(-1, keepdim=True)
    among = torch.gather(best, 2, missing.clamp(max=best.shape[-1] - 1)).clamp(min=_LOWEST)
    off = (top_p >= 1)[:, None, None]
    among = torch.where(off, _LOWEST, among)

    def search(weight: Tensor, wanted: Tensor) -> Tensor:
        return _largest(weight, lambda v: above(weight, v).sum(-1, keepdim=True) >= wanted)

    return _unless_all(unused | off | (missing < best.shape[-1]), among, search, weight, wanted)


def _unless_all(
    found: Tensor, among: Tensor, search: Callable[[Tensor, Tensor], Tensor], weight: Tensor, wanted: Tensor
) -> Tensor:
    """`among` [B,R,1] in rows where it is `found`, else what `search` finds, which runs only if some row needs it."""
    if not torch.compiler.is_exporting():
        return among if found.all() else torch.where(found, among, search(weight, wanted))
    searched: Tensor = torch.cond(
        found.all(),
        lambda weight, wanted, among: among.clone(),
        lambda weight, wanted, among: search(weight, wanted),
        (weight, wanted, among),
    )
    return torch.where(found, among, searched)


def _largest(weight: Tensor, enough: Enough) -> Tensor:
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
