"""top_k and top_p as a threshold on the weight: tokens of equal weight stay or go together.

The threshold is nearly always among the few largest weights, which are sorted. Where it isn't (top_p of a flat
distribution, a very large top_k), it is found by bisection over all of them: ten times the work, and just as exact,
without sorting a vocabulary, which engines can't. A row's result depends on nothing but the row.
"""

import torch
from torch import Tensor

from dflash_export import ops
from dflash_export.programs.sampling import above

CANDIDATES = 128


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
    among = torch.where(wanted > 0, among.clamp(min=ops.LOWEST), ops.LOWEST)
    return _unless_all(unused | (wanted <= best.shape[-1]), among, weight, wanted.float(), by_mass=False)


def top_p_threshold(weight: Tensor, best: Tensor, top_p: Tensor, unused: Tensor) -> Tensor:
    """The largest threshold [B,R,1] for which the weights that reach it make the part top_p [B] of the whole."""
    wanted = weight.sum(-1, keepdim=True) * top_p[:, None, None]
    short = torch.cumsum(best, -1) < wanted  # [B, R, CANDIDATES]
    missing = short.long().sum(-1, keepdim=True)
    among = torch.gather(best, 2, missing.clamp(max=best.shape[-1] - 1)).clamp(min=ops.LOWEST)
    off = (top_p >= 1)[:, None, None]
    among = torch.where(off, ops.LOWEST, among)

    return _unless_all(unused | off | (missing < best.shape[-1]), among, weight, wanted, by_mass=True)


def _unless_all(found: Tensor, among: Tensor, weight: Tensor, wanted: Tensor, *, by_mass: bool) -> Tensor:
    """`among` [B,R,1] in rows where it is `found`, else what a search finds, which runs only if a row needs it."""
    if not torch.compiler.is_exporting():
        return among if found.all() else torch.where(found, among, ops.threshold(weight, wanted, by_mass))
    searched: Tensor = torch.cond(
        found.all(),
        lambda weight, wanted, among: among.clone(),
        lambda weight, wanted, among: ops.threshold(weight, wanted, by_mass),
        (weight, wanted, among),
    )
    return torch.where(found, among, searched)
