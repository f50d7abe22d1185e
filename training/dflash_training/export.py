"""Stage `export`: a folder in z-lab's format, and back again."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_training.drafter import Drafter
from dflash_training.errors import TrainingError
from dflash_training.shape import DrafterShape


def zlab_tensors(weights: dict[str, Tensor], tap_scale: Tensor) -> dict[str, Tensor]:
    """Tensors as they are stored: bf16, the tap scale folded into `fc`."""
    folded = dict(weights)
    width = weights["fc.weight"].shape[1] // len(tap_scale)
    folded["fc.weight"] = weights["fc.weight"].float() * tap_scale.repeat_interleave(width)
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in folded.items()}


def export_drafter(weights: dict[str, Tensor], tap_scale: Tensor, shape: DrafterShape, out: Path) -> None:
    """Write `config.json` and `model.safetensors`. `weights` are named as the drafter's parameters."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(shape.config(), indent=2) + "\n")
    save_file(zlab_tensors(weights, tap_scale), out / "model.safetensors", metadata={"format": "pt"})


def load_drafter(folder: Path, shape: DrafterShape) -> Drafter:
    """A drafter to go on training from, its tap scale one.

    Raises:
        TrainingError: its tensors are not those of `shape`.
    """
    file = folder / "model.safetensors"
    if not file.is_file():
        raise TrainingError(f"{file}: missing; --init takes a z-lab drafter folder")
    drafter = Drafter(shape)
    weights = {name: tensor.float() for name, tensor in load_file(file).items()}
    try:
        drafter.load_state_dict(weights | {"tap_scale": drafter.tap_scale})
    except RuntimeError as error:
        raise TrainingError(f"{file}: does not fit the shape asked for: {error}") from error
    return drafter
