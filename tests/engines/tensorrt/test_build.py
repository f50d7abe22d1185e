"""Every program of the tiny pair, in every number format and for every compute capability, compiles without a GPU."""

import shutil
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_engines.tensorrt.build import DEFAULT_CAPABILITIES, BuildRequest, build, plan
from dflash_engines.tensorrt.engine_files import ATTENTIONS, Sidecar
from dflash_engines.tensorrt.library import Library, load_library
from tests.engines.tensorrt.conftest import DRAFT_LAYERS, LAYERS, MakeBundle

pytest.importorskip("tensorrt_rtx", reason="needs the optional package tensorrt_rtx")
# All four at once: code for each goes into one file.
ALL = ",".join(DEFAULT_CAPABILITIES)
FAST: tuple[tuple[Precision, str], ...] = (("fp16", ALL), ("bf16", ALL), ("int8", ALL), ("int4", ALL))
SINGLE = [(p, c) for p in ("fp16", "bf16", "int8", "int4") for c in DEFAULT_CAPABILITIES]


@pytest.fixture(scope="session")
def library() -> Library:
    return load_library("tensorrt-rtx")


def built(source: Bundle, library: Library, folder: Path, capabilities: str) -> tuple[Bundle, Sidecar, list[str]]:
    """A copy of `source` with its engines, their sidecar, and the phases that were reported."""
    shutil.copytree(source.path, folder)
    request = BuildRequest(compute_capabilities=tuple(capabilities.split(",")))
    phases: list[str] = []
    bundle, sidecar = build(plan(Bundle.open(folder), library, request), lambda phase, _part: phases.append(phase))
    return bundle, sidecar, phases


@pytest.mark.parametrize(("precision", "capabilities"), FAST)
def test_every_program_compiles_for_all_capabilities(
    precision: Precision, capabilities: str, tiny_bundle: MakeBundle, library: Library, tmp_path: Path
) -> None:
    source = tiny_bundle(precision)
    bundle, sidecar, phases = built(source, library, tmp_path / "bundle", capabilities)
    check_engines(bundle, sidecar)
    assert sidecar.compute_capabilities == DEFAULT_CAPABILITIES
    assert any("target" in phase for phase in phases)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "capability"), SINGLE)
def test_every_program_compiles_for_each_capability_alone(
    precision: Precision, capability: str, tiny_bundle: MakeBundle, library: Library, tmp_path: Path
) -> None:
    bundle, sidecar, _ = built(tiny_bundle(precision), library, tmp_path / "bundle", capability)
    check_engines(bundle, sidecar)


def check_engines(bundle: Bundle, sidecar: Sidecar) -> None:
    """One engine for each program and attention, fused, each cache updated in place, and kernels to match."""
    attending = {(e.program, e.attention): e for e in sidecar.engines if e.attention}
    assert set(attending) == {(program, a) for program in ("target", "draft") for a in ATTENTIONS}
    assert {e.program for e in sidecar.engines} == set(bundle.manifest.programs)
    for (program, _), engine in attending.items():
        layers = LAYERS if program == "target" else DRAFT_LAYERS
        updated = LAYERS + DRAFT_LAYERS if program == "target" else DRAFT_LAYERS
        assert (engine.attentions, engine.cache_updates, engine.decomposable) == (layers, 2 * updated, False)
    for engine in sidecar.engines:
        assert bundle.file(engine.file).stat().st_size == engine.bytes > engine.weight_bytes
        assert engine.seconds > 0
