"""From two checkpoints to the three programs, and what a manifest says of the pair."""

from dataclasses import dataclass

import torch

from dflash_engines.contract import AcceptVariant, Geometry
from dflash_export import drafter as drafters
from dflash_export import pair, seams
from dflash_export.checkpoint import Checkpoint, TargetModel, load_target
from dflash_export.drafter_config import DrafterConfig
from dflash_export.programs import accept
from dflash_export.programs.accept import Accept
from dflash_export.programs.draft import Draft, DraftNoise
from dflash_export.programs.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """The programs of one pair in PyTorch."""

    target: Target
    draft: Draft
    draft_noise: DraftNoise
    accepts: dict[AcceptVariant, Accept]
    geometry: Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, still as transformers made it, and its drafter, both in fp32."""

    target: TargetModel
    drafter: drafters.Drafter


def load_pair(target: Checkpoint, drafter: Checkpoint) -> Pair:
    """Load both and check them against each other. Raises CheckpointError."""
    config = DrafterConfig.from_folder(drafter.folder)
    loaded = load_target(target.folder)
    pair.check_pair(loaded, config)
    return Pair(target=loaded, drafter=drafters.load(drafter.folder, config))


def assemble(models: Pair, *, draft_vocab: torch.Tensor | None, hidden_output: bool) -> Modules:
    """The three programs. From here on the target computes with our attention and norms."""
    loaded, drafter = models.target, models.drafter
    loaded.model.set_attn_implementation(seams.IMPLEMENTATION)
    seams.fuse_norms(loaded.model)
    draft = Draft(drafter, loaded.embedding, loaded.head, draft_vocab).eval()
    return Modules(
        target=Target(loaded, drafter, hidden_output=hidden_output).eval(),
        draft=draft,
        draft_noise=DraftNoise(draft).eval(),
        accepts=accept.variants(drafter.config.mask_token_id),
        geometry=pair.geometry(loaded, drafter.config),
    )
