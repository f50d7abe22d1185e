"""A bundle's programs in PyTorch, fp32, whatever the bundle's own precision: what the doctor swaps in."""

from dflash_engines.bundle import Bundle
from dflash_engines.errors import CheckpointError
from dflash_export.checkpoint import Checkpoint, locate
from dflash_export.programs.build import assemble, load_pair
from dflash_export.pytorch_backend import PytorchPrograms


def load(bundle: Bundle) -> PytorchPrograms:
    """The entry point `oracle`. Raises CheckpointError where the checkpoints aren't those of the bundle."""
    manifest = bundle.manifest
    target, drafter = (
        _same(manifest.target.id, manifest.target.sha256),
        _same(manifest.drafter.id, manifest.drafter.sha256),
    )
    return PytorchPrograms(assemble(load_pair(target, drafter), draft_vocab=None, hidden_output=manifest.hidden_output))


def _same(name: str, sha256: str) -> Checkpoint:
    found = locate(name)
    if found.source.sha256 != sha256:
        raise CheckpointError(f"{name} is not the checkpoint that the bundle was made from any more")
    return found
