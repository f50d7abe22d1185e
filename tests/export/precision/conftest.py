"""The trained tiny pair as it is traced, once a session; every lowering starts from there."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
import pytest
import torch
from tokenizers import Tokenizer

from dflash_engines import contract
from dflash_engines.contract import Geometry
from dflash_export.checkpoint import locate
from dflash_export.precision.calibration import Observed, observe
from dflash_export.program_files import canonical
from dflash_export.programs.build import assemble, load_pair
from tests.models.tiny_pair import DRAFTER, TARGET, held_back_questions

MASK, BLOCK_SIZE = 3, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """Its programs in fp32, and token ids of a few questions."""

    models: Mapping[str, ir.Model]
    geometry: Geometry
    prompts: tuple[tuple[int, ...], ...]

    def clones(self) -> dict[str, ir.Model]:
        """Programs that a test may plant a fault in."""
        return {name: model.clone() for name, model in self.models.items()}


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    modules = assemble(
        load_pair(locate(str(TARGET)), locate(str(DRAFTER))), draft_vocab=torch.arange(900), hidden_output=False
    )
    programs = ((modules.target, contract.target(modules.geometry)), (modules.draft, contract.draft(modules.geometry)))
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    return Tiny(
        models={program.name: canonical(module, program) for module, program in programs},
        geometry=modules.geometry,
        prompts=tuple(tuple(tokenizer.encode(text).ids[:40]) for text in held_back_questions()[:8]),
    )


@pytest.fixture(scope="session")
def observed(tiny: Tiny) -> dict[str, Observed]:
    """What calibration sees of the tiny pair."""
    torch.manual_seed(0)
    return observe(tiny.models, tiny.prompts, BLOCK_SIZE, MASK)
