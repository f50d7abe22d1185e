"""The tiny pair as an engine of PyTorch modules, proven by golden cases that PyTorch computed on the CPU."""

from pathlib import Path

from dflash_engines import contract
from dflash_engines.contract import Limits
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.device.proof import prove
from dflash_engines.golden import Golden, Runner
from dflash_export import golden_cases
from dflash_export.checkpoint import locate
from dflash_export.programs.build import Modules, assemble, load_pair
from dflash_export.pytorch_backend import PytorchPrograms
from scripts.gpu_check.pairs import engine

LIMITS = Limits(max_len=256, max_batch=1, prefill_chunk=16, block_sizes=(8,))
TOLERANCE = 5e-3  # of a logit, as for fp32 bundles
_PROMPTS = (tuple(range(20, 40)), tuple(range(50, 90, 3)))


def load(folder: Path) -> Modules:
    """The three programs of the pair in `folder`, on the CPU."""
    models = load_pair(locate(str(folder / "target")), locate(str(folder / "drafter")))
    return assemble(models, draft_vocab=None, hidden_output=False)


def recorded(modules: Modules) -> Golden:
    """Golden cases by PyTorch on the CPU."""
    geometry = modules.geometry
    declared = (contract.target(geometry), contract.draft(geometry), contract.accept(geometry))
    oracle = Runner(PytorchPrograms(modules), declared, LIMITS)
    return golden_cases.record(oracle, _PROMPTS, LIMITS.block_sizes[-1], mask_token_id(modules), TOLERANCE)


def mask_token_id(modules: Modules) -> int:
    """The drafter's mask."""
    return modules.draft.drafter.config.mask_token_id


def tiny_engine(folder: Path, device: str) -> tuple[DeviceEngine, float]:
    """The engine, and how far its largest deviation was."""
    modules = load(folder)
    golden = recorded(modules)
    made = engine(
        {"target": modules.target, "draft": modules.draft}, modules.geometry, LIMITS, mask_token_id(modules), device
    )
    return made, prove(made, golden)
