"""Where a drafter starts: as a copy of the target's last layers, fed with the mean of the taps."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dflash_training.drafter import Drafter, Layer
from dflash_training.errors import TrainingError
from dflash_training.target import Target

HEAD_NORM = 1.5


def measure_tap_scale(states: Iterable[Tensor]) -> Tensor:
    """1 / root mean square of each tap, [N], over answers' taps [T, N, H] without token 0.

    Token 0 holds activations of 25,000 and more: with it the scale would say nothing of the others.
    """
    squares = [rows[1:].float().square().mean((0, 2)) for rows in states]
    return torch.stack(squares).mean(0).rsqrt()


@torch.no_grad()
def start_from_target(drafter: Drafter, target: Target) -> None:
    """Copy the target's last layers and final norm into a drafter of the same widths.

    Raises:
        TrainingError: the target's layers are not built like the drafter's.
    """
    weights = target.model.base_model.state_dict()
    last = drafter.shape.num_target_layers - drafter.shape.num_hidden_layers
    copied = {}
    for name in drafter.state_dict():
        source = _source(name, last)
        if source is not None:
            if source not in weights or weights[source].shape != drafter.get_parameter(name).shape:
                raise TrainingError(f"{target.name}: has no {source} that fits this drafter; train with --random-start")
            copied[name] = weights[source].float()
    drafter.load_state_dict(copied, strict=False)
    for layer in drafter.layers:
        assert isinstance(layer, Layer)
        layer.self_attn.q_norm.weight.fill_(HEAD_NORM)
        layer.self_attn.k_norm.weight.fill_(HEAD_NORM)
    norms = [value for name, value in copied.items() if name.endswith("input_layernorm.weight")]
    drafter.hidden_norm.weight.copy_(torch.stack(norms).mean(0))
    _mean_of_taps(drafter)


def _source(name: str, last: int) -> str | None:
    """The target's tensor that a drafter's tensor starts from; None: it has none."""
    if name == "norm.weight":
        return name
    if not name.startswith("layers.") or "q_norm" in name or "k_norm" in name:
        return None
    _, index, rest = name.split(".", 2)
    return f"layers.{int(index) + last}.{rest}"


def _mean_of_taps(drafter: Drafter) -> None:
    taps = len(drafter.shape.target_layer_ids)
    drafter.fc.weight.copy_(torch.eye(drafter.shape.hidden_size).repeat(1, taps) / taps)


@torch.no_grad()
def start_random(drafter: Drafter, seed: int) -> None:
    """Small normal weights, norms of one."""
    generator = torch.Generator().manual_seed(seed)
    for module in drafter.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * 0.02)
    _mean_of_taps(drafter)
