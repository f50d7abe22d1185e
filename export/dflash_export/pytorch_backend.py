"""PyTorch as a backend: the same programs, not compiled. The oracle that every other backend is measured against.

It needs the checkpoints themselves; their hashes must be the ones that the bundle was exported from. The provider
"cuda" (or "cuda:1") runs it on a GPU, in CUDA graphs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dflash_engines.backend import Buffers, Options
from dflash_engines.bundle import Bundle
from dflash_engines.device.loading import ready_engine, settings_for
from dflash_engines.engine import Engine
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.manifest import ModelSource
from dflash_export.checkpoint import Checkpoint, locate
from dflash_export.programs.build import Modules, assemble, load_pair
from dflash_export.torch_device import TorchDevice
from dflash_export.torch_programs import TorchPrograms


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
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    target, drafter = (_same(source) for source in (manifest.target, manifest.drafter))
    modules = assemble(load_pair(target, drafter), draft_vocab=None, hidden_output=manifest.hidden_output)
    programs, limits = PytorchPrograms(modules), host_limits(bundle, options)
    if options.provider is None:
        return HostEngine(bundle, programs, limits)
    device = open_gpu(options.provider)
    on_device = TorchPrograms(device, programs.modules)
    return ready_engine(bundle, device, on_device, limits, settings_for(limits))


def open_gpu(provider: str) -> TorchDevice:
    """The GPU called "cuda" or "cuda:N". Raises EngineError where there is none."""
    if not provider.startswith("cuda"):
        raise EngineError(f"the pytorch backend runs on the CPU, or with the provider 'cuda', not with {provider!r}")
    if not torch.cuda.is_available():
        raise EngineError(f"PyTorch {torch.__version__} sees no GPU here; leave the provider out to run on the CPU")
    return TorchDevice(provider)


def _same(source: ModelSource) -> Checkpoint:
    checkpoint = locate(source.id)
    if checkpoint.source.sha256 != source.sha256:
        raise EngineError(f"{source.id} is not the checkpoint that the bundle was exported from; export the pair again")
    return checkpoint
