"""Log-probabilities of the target's own distribution: before temperature, filters and every other rule."""

import torch
from torch import Tensor

from dflash_export.programs import sampling


def log_probabilities(logits: Tensor, sampled: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Those of the sampled tokens [B,R], the likeliest tokens [B,R,top], best first, and theirs."""
    weight = sampling.weights(logits, torch.ones_like(logits[:, 0, 0]))
    normaliser = logits.amax(-1) + torch.log(weight.sum(-1))
    best, tokens = torch.topk(logits, top)
    chosen = torch.gather(logits, 2, sampled.clamp(min=0)[..., None])[..., 0]
    return chosen - normaliser, tokens, best - normaliser[..., None]
