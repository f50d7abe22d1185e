"""What the drafter is trained on: weighted cross-entropy, the target's distribution, the target's hidden state."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Weighting = Literal["exponential", "dpace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """`distill`: share of the target's distribution against the hard label. `regression`: weight of the
    normalised distance to the target's final hidden state. `gamma`: decay of the exponential weights.
    `smoothing`: the D-PACE floor a."""

    weighting: Weighting = "dpace"
    gamma: float = 4.0
    smoothing: float = 0.5
    distill: float = 0.5
    regression: float = 1.0


def exponential_weights(scored: Tensor, gamma: float) -> Tensor:
    """exp(-(k-1)/gamma) on scored rows, [.., K] (arXiv 2602.06036)."""
    row = torch.arange(scored.shape[-1], device=scored.device)
    return torch.exp(-(row - 1).clamp(min=0) / gamma) * scored


def dpace_weights(loss: Tensor, scored: Tensor, smoothing: float) -> Tensor:
    """D-PACE (arXiv 2605.18810): a row weighs as much as its block is expected to gain from it. [.., K].

    With q = (1-a) exp(-loss) + a and prefixes P_j = q_1 .. q_j, w_j = P_j + P_j+1 + .. over scored rows.
    """
    prob = (1 - smoothing) * torch.exp(-loss.detach()) + smoothing
    prefix = torch.where(scored, prob, 1.0).cumprod(-1) * scored
    return prefix.flip(-1).cumsum(-1).flip(-1) * scored


@dataclass(frozen=True, slots=True)
class Losses:
    """The sum that is minimised and its parts, each averaged over rows by weight."""

    total: Tensor
    cross_entropy: Tensor
    regression: Tensor


def block_losses(
    hidden: Tensor,
    teacher: Tensor,
    head: Tensor,
    labels: Tensor,
    scored: Tensor,
    config: LossConfig,
    autocast: torch.autocast,
) -> Losses:
    """Loss of all blocks at once.

    Args:
        hidden: [R, H], the drafter's normed states of the scored rows.
        teacher: [R, H], the target's final hidden state that predicts each of those rows.
        head: [V', H], the target's head cut to the loss vocabulary.
        labels: [R], ids in the loss vocabulary; -1 where the token is not in it.
        scored: bool [B*A, K] with R true entries, in the rows' order.
    """
    with autocast:
        log_prob = functional.log_softmax((hidden @ head.T).float(), -1)  # [R, V']
        known = labels >= 0
        hard = -log_prob.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        mixed = torch.where(known, hard, 0.0)
        if config.distill:
            with torch.no_grad():
                target_prob = functional.softmax((teacher @ head.T).float(), -1)
            soft = -(target_prob * log_prob).sum(-1)
            mixed = (1 - config.distill) * mixed + config.distill * soft
    weights = _spread(hard, scored, config)[scored]
    distance = (hidden - teacher).square().mean(-1) / teacher.square().mean(-1)
    norm = weights.sum()
    cross_entropy = (weights * mixed).sum() / norm
    regression = (weights * distance).sum() / norm
    return Losses(cross_entropy + config.regression * regression, cross_entropy.detach(), regression.detach())


def _spread(loss: Tensor, scored: Tensor, config: LossConfig) -> Tensor:
    """Weights of all rows, [B*A, K]."""
    if config.weighting == "exponential":
        return exponential_weights(scored, config.gamma)
    full = torch.zeros(scored.shape, device=loss.device, dtype=loss.dtype)
    full[scored] = loss.detach()
    return dpace_weights(full, scored, config.smoothing)
