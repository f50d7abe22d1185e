"""A training run on disk: everything it needs to go on to the same numbers."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dflash_training.errors import TrainingError


@dataclass(slots=True)
class RunState:
    """What changes as training goes. Batches, anchors and reveals follow from the seed and `step` alone."""

    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    average: dict[str, Tensor]
    step: int = 0
    seconds: float = 0.0


def save_checkpoint(path: Path, state: RunState, identity: dict[str, object]) -> None:
    """Write the run; the file is replaced whole."""
    partial = path.with_suffix(".partial")
    torch.save(
        {
            "identity": identity,
            "model": state.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in state.optimisers],
            "average": state.average,
            "step": state.step,
            "seconds": state.seconds,
        },
        partial,
    )
    partial.replace(path)


def load_checkpoint(path: Path, state: RunState, identity: dict[str, object]) -> None:
    """Put a saved run back into `state`.

    Raises:
        TrainingError: the checkpoint belongs to a run with other settings.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    if saved["identity"] != identity:
        different = sorted(k for k in identity if saved["identity"].get(k) != identity[k])
        raise TrainingError(f"{path}: saved by a run with another {', '.join(different)}; give a new --out")
    state.model.load_state_dict(saved["model"])
    for optimiser, values in zip(state.optimisers, saved["optimisers"], strict=True):
        optimiser.load_state_dict(values)
    for name, tensor in saved["average"].items():
        state.average[name].copy_(tensor)
    state.step, state.seconds = saved["step"], saved["seconds"]
