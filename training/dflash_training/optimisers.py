"""Optimisers, their learning-rate schedule, and the moving average of the weights."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserConfig:
    """`muon`: orthogonalised momentum for matrices, AdamW for the norms. `ema` 0: no average."""

    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 1.2e-3
    muon_rate: float = 0.01
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    warm_up: float = 0.04
    final_rate: float = 0.05
    clip: float = 1.0
    ema: float = 0.998


def make_optimisers(model: nn.Module, config: OptimiserConfig) -> list[torch.optim.Optimizer]:
    """One optimiser, or Muon for the matrices beside AdamW for the rest."""
    parameters = list(model.parameters())
    if config.name == "adamw":
        return [_adamw(parameters, config)]
    matrices = [p for p in parameters if p.ndim == 2]
    muon = torch.optim.Muon(
        matrices,
        lr=config.muon_rate,
        weight_decay=config.weight_decay,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    return [muon, _adamw([p for p in parameters if p.ndim != 2], config)]


def _adamw(parameters: list[nn.Parameter], config: OptimiserConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )


def rate_factor(progress: float, config: OptimiserConfig) -> float:
    """Linear warm-up, then half a cosine down to `final_rate`. progress in 0..1."""
    if progress < config.warm_up:
        return progress / config.warm_up
    along = min(1.0, (progress - config.warm_up) / (1 - config.warm_up))
    return config.final_rate + (1 - config.final_rate) * 0.5 * (1 + math.cos(math.pi * along))


def set_rates(optimisers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Set every learning rate to `factor` times what the optimiser was made with."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


@torch.no_grad()
def update_average(average: dict[str, Tensor], model: nn.Module, decay: float, step: int) -> None:
    """Exponential moving average, shorter at the start so that it forgets the first weights."""
    keep = min(decay, (step + 1) / (step + 10))
    parameters = dict(model.named_parameters())
    torch._foreach_lerp_([average[name] for name in parameters], list(parameters.values()), 1 - keep)
