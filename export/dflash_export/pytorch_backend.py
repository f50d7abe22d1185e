"""PyTorch as a backend: the same programs, not compiled. The oracle that every other backend is measured against.

It needs the checkpoints themselves; their hashes must be the ones that the bundle was exported from.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dflash_engines.backend import Buffers, Options
from dflash_engines.bundle import Bundle
from dflash_engines.engine import Engine
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.manifest import ModelSource
from dflash_export.checkpoint import Checkpoint, locate
from dflash_export.programs.build import Modules, assemble, load_pair


class PytorchPrograms:
    """Implements `backend.Programs` with the torch modules that are traced."""

    def __init__(self, modules: Modules) -> None:
        self.modules: Mapping[str, nn.Module] = {
            "target": modules.target,
            "draft": modules.draft,
            "draft_noise": modules.draft_noise,
            **{variant.name: module for variant, module in modules.accepts.items()},
        }

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Callable[[], None]:
        """See `backend.Programs.bind`."""
        module = self.modules[program]

        def run() -> None:
            with torch.no_grad():
                results = module(*(torch.from_numpy(array) for array in inputs.values()))
            for array, result in zip(outputs.values(), results, strict=True):
                _write(array, result)

        return run


def _write(array: NDArray[Any], result: torch.Tensor) -> None:
    np.copyto(array, result.numpy())


def load(bundle: Bundle, options: Options) -> Engine:
    """Load the bundle's checkpoints into PyTorch; the entry point `pytorch`. Raises EngineError or CheckpointError."""
    manifest = bundle.manifest
    if manifest.precision != "fp32":
        raise EngineError(f"the pytorch backend runs fp32 programs, {bundle.path} is {manifest.precision}")
    if options.provider is not None:
        raise EngineError("the pytorch backend has no execution providers; leave provider out")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    target, drafter = (_same(source) for source in (manifest.target, manifest.drafter))
    modules = assemble(load_pair(target, drafter), draft_vocab=None, hidden_output=manifest.hidden_output)
    return HostEngine(bundle, PytorchPrograms(modules), host_limits(bundle, options))


def _same(source: ModelSource) -> Checkpoint:
    checkpoint = locate(source.id)
    if checkpoint.source.sha256 != source.sha256:
        raise EngineError(f"{source.id} is not the checkpoint that the bundle was exported from; export the pair again")
    return checkpoint
