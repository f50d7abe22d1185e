"""Drafts, iteration by iteration, against the independent reference loop in plain PyTorch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash_engines.backend import Options, load_engine
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Limits
from dflash_engines.engine import Engine
from dflash_engines.host_engine import HostEngine
from dflash_export.checkpoint import locate
from dflash_export.programs.build import Modules, assemble, load_pair
from dflash_export.pytorch_backend import PytorchPrograms
from tests.export.conftest import ExportPair
from tests.export.pairs import DRAFTER_CASES, FAMILY_CASES, PairCase, write_pair
from tests.reference.reference_drafter import ReferenceDrafter
from tests.reference.reference_loop import ReferenceResult, reference_loop

PROMPT = [int(i) for i in torch.randint(4, 260, (37,), generator=torch.Generator().manual_seed(11))]
NEW_TOKENS = 40
CHUNK = 16  # the prompt crosses two borders


def reference(target: Path, drafter: Path, block_size: int) -> ReferenceResult:
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, attn_implementation="eager").eval()
    return reference_loop(model, ReferenceDrafter.from_folder(drafter, model), PROMPT, NEW_TOKENS, block_size)


def engine_loop(engine: Engine, block_size: int, iterations: int) -> tuple[list[list[int]], list[int]]:
    """Drafts and acceptance lengths of the product's loop."""
    last = (len(PROMPT) - 1) // CHUNK * CHUNK
    for start in range(0, last, CHUNK):
        engine.prefill(0, PROMPT[start : start + CHUNK], start)
    first = engine.finish_prefill(0, PROMPT[last:], last)
    engine.place(0, anchor=int(first.sampled[0, 0]), start=len(PROMPT), limit=engine.limits.max_len)
    drafts, lengths = [], []
    for _ in range(iterations):
        engine.launch(block_size)
        found = engine.collect()
        drafts.append(found.block[0, 1:].tolist())
        lengths.append(int(found.accepted[0]) + 1)
    return drafts, lengths


def described(bundle: Bundle, modules: Modules) -> Bundle:
    """The bundle with another pair's numbers in its manifest; its files are not read."""
    geometry, hidden = modules.geometry, False
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"geometry": geometry, "hidden_output": hidden}))


def assert_same(engine: Engine, target: Path, drafter: Path, block_size: int) -> None:
    wanted = reference(target, drafter, block_size)
    drafts, lengths = engine_loop(engine, block_size, len(wanted.drafts))
    assert drafts == wanted.drafts
    assert lengths == wanted.acceptance_lengths


@pytest.mark.parametrize("case", FAMILY_CASES, ids=lambda case: case.name)
def test_compiled_drafts_are_the_references(case: PairCase, export_pair: ExportPair) -> None:
    target, drafter, bundle = export_pair(case)
    assert_same(load_engine(bundle, "onnxruntime", Options(slots=1)), target, drafter, bundle.manifest.block_size)


@pytest.mark.parametrize("case", DRAFTER_CASES, ids=lambda case: case.name)
def test_drafts_of_every_drafter_shape(case: PairCase, export_pair: ExportPair, tmp_path: Path) -> None:
    """The programs in PyTorch; that the compiled ones equal these is the export's own gate."""
    any_bundle = export_pair(FAMILY_CASES[0])[2]
    target, drafter = write_pair(case, tmp_path)
    modules = assemble(load_pair(locate(str(target)), locate(str(drafter))), draft_vocab=None, hidden_output=False)
    block_size = modules.draft.drafter.config.block_size
    limits = Limits(max_len=128, prefill_chunk=CHUNK, block_sizes=(block_size,))
    engine = HostEngine(described(any_bundle, modules), PytorchPrograms(modules), limits)
    assert_same(engine, target, drafter, block_size)
    assert_same(engine, target, drafter, max(2, block_size - 3))
