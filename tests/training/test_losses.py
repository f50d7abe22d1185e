"""Losses and weights against straightforward loops."""

import math

import pytest
import torch

from dflash_training.losses import LossConfig, block_losses, dpace_weights, exponential_weights

SCORED = torch.tensor([[False, True, True, True], [False, True, False, False], [False, False, True, True]])
NO_AUTOCAST = torch.autocast("cpu", enabled=False)


def test_exponential_weights() -> None:
    weights = exponential_weights(SCORED, 4.0)
    assert weights[0].tolist() == pytest.approx([0.0, 1.0, math.exp(-1 / 4), math.exp(-2 / 4)])
    assert weights[1].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_dpace_weights_are_the_sums_of_later_prefixes() -> None:
    loss = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) * 3
    got = dpace_weights(loss, SCORED, 0.5)
    for row, scored in enumerate(SCORED.tolist()):
        prob = [0.5 * math.exp(-float(x)) + 0.5 if s else 1.0 for x, s in zip(loss[row], scored, strict=True)]
        prefix = [math.prod(prob[: j + 1]) if s else 0.0 for j, s in enumerate(scored)]
        expected = [sum(prefix[j:]) if s else 0.0 for j, s in enumerate(scored)]
        assert got[row].tolist() == pytest.approx(expected)


def by_hand(hidden: torch.Tensor, teacher: torch.Tensor, head: torch.Tensor, labels: list[int], share: float) -> float:
    """Mean over rows of equal weight, without regression."""
    total = 0.0
    for h, t, label in zip(hidden, teacher, labels, strict=True):
        log_prob, target = (head @ h).log_softmax(0), (head @ t).softmax(0)
        hard = -float(log_prob[label]) if label >= 0 else 0.0
        total += (1 - share) * hard + share * -float((target * log_prob).sum())
    return total / len(labels)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_cross_entropy_with_a_share_of_distillation(share: float) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, teacher = (torch.randn(6, 5, generator=generator) for _ in range(2))
    head, labels = torch.randn(7, 5, generator=generator), [0, 3, -1, 6, 2, 2]
    config = LossConfig(weighting="exponential", gamma=1e9, distill=share, regression=0.0)
    losses = block_losses(hidden, teacher, head, torch.tensor(labels), SCORED, config, NO_AUTOCAST)
    assert float(losses.total) == pytest.approx(by_hand(hidden, teacher, head, labels, share), rel=1e-5)


def test_regression_is_the_relative_squared_distance() -> None:
    hidden, teacher = torch.ones(6, 5), torch.full((6, 5), 2.0)
    config = LossConfig(weighting="exponential", regression=3.0)
    losses = block_losses(hidden, teacher, torch.eye(5), torch.zeros(6).long(), SCORED, config, NO_AUTOCAST)
    assert float(losses.regression) == pytest.approx(0.25)
    assert float(losses.total - losses.cross_entropy) == pytest.approx(0.75)
