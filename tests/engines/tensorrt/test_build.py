"""Every program of the tiny pair, in every number format and for every compute capability, compiles without a GPU."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_engines.tensorrt.build import DEFAULT_CAPABILITIES, BuildRequest, Plan, build, plan
from dflash_engines.tensorrt.engine_files import ATTENTIONS, Sidecar, check_programs, read_plans, read_sidecar
from dflash_engines.tensorrt.library import Library, load_library
from tests.engines.tensorrt.conftest import DRAFT_LAYERS, LAYERS, MakeBundle

pytest.importorskip("tensorrt_rtx", reason="needs the optional package tensorrt_rtx")
# All four at once: one file holds code for each.
ALL = BuildRequest(compute_capabilities=DEFAULT_CAPABILITIES, block_sizes=(8,))
LIGHT = BuildRequest(compute_capabilities=DEFAULT_CAPABILITIES, attention=("grouped",), block_sizes=(8,))
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "int8", "int4")


@pytest.fixture(scope="session")
def library() -> Library:
    return load_library("tensorrt-rtx")


def planned(source: Bundle, library: Library, folder: Path, request: BuildRequest) -> Plan:
    """To build into a copy of `source`."""
    shutil.copytree(source.path, folder)
    return plan(Bundle.open(folder), library, request)


def test_every_program_compiles_in_both_ways(tiny_bundle: MakeBundle, library: Library, tmp_path: Path) -> None:
    phases: list[str] = []
    bundle, sidecar = build(
        planned(tiny_bundle("fp16"), library, tmp_path / "bundle", ALL), lambda phase, _part: phases.append(phase)
    )
    assert {e.program for e in sidecar.engines} == set(bundle.manifest.programs)
    assert sidecar.attentions() == ATTENTIONS
    assert sidecar.compute_capabilities == DEFAULT_CAPABILITIES
    check_engines(bundle, sidecar)
    assert any("target" in phase for phase in phases)
    assert read_sidecar(bundle, "tensorrt-rtx") == sidecar
    check_programs(bundle, sidecar)
    assert set(read_plans(bundle, sidecar, "traced")) == set(bundle.manifest.programs)


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_target_and_draft_compile_in_every_format(
    precision: Precision, tiny_bundle: MakeBundle, library: Library, tmp_path: Path
) -> None:
    whole = planned(tiny_bundle(precision), library, tmp_path / "bundle", LIGHT)
    weighty = tuple(program for program in whole.programs if not program.name.startswith("accept"))
    bundle, sidecar = build(replace(whole, programs=weighty), lambda *_: None)
    assert [e.program for e in sidecar.engines] == ["target", "draft"]
    check_engines(bundle, sidecar)


@pytest.mark.slow
@pytest.mark.parametrize("capability", DEFAULT_CAPABILITIES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_program_compiles_for_each_capability_alone(
    precision: Precision, capability: str, tiny_bundle: MakeBundle, library: Library, tmp_path: Path
) -> None:
    request = BuildRequest(compute_capabilities=(capability,))
    bundle, sidecar = build(planned(tiny_bundle(precision), library, tmp_path / "bundle", request), lambda *_: None)
    check_engines(bundle, sidecar)


def check_engines(bundle: Bundle, sidecar: Sidecar) -> None:
    """Attention fused in every layer, each cache updated in place, no plugin; and files to match."""
    for engine in sidecar.engines:
        assert bundle.file(engine.file).stat().st_size == engine.bytes > engine.weight_bytes
        assert engine.seconds > 0
        if engine.attention is not None:
            target = engine.program == "target"
            layers, updated = (LAYERS, LAYERS + DRAFT_LAYERS) if target else (DRAFT_LAYERS, DRAFT_LAYERS)
            assert (engine.attentions, engine.cache_updates, engine.plugins) == (layers, 2 * updated, 0)
            assert not engine.decomposable
