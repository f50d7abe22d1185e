"""SmolLM2 in every number format compiles for every compute capability; its engines are little more than weights."""

from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.manifest import Precision
from dflash_engines.tensorrt.build import DEFAULT_CAPABILITIES, BuildRequest, build, plan
from dflash_engines.tensorrt.library import load_library
from dflash_export.pipeline import ExportRequest, export
from tests.conftest import DEMO_DRAFTER

pytest.importorskip("tensorrt_rtx", reason="needs the optional package tensorrt_rtx")
KERNELS = 12e6  # bytes for each profile, 30 layers; the weights exist once, or this is far exceeded
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "int8", "int4")


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_smollm2_compiles(precision: Precision, demo_target: Path, tmp_path: Path) -> None:
    request = ExportRequest(
        target=str(demo_target), drafter=str(DEMO_DRAFTER), out=tmp_path / "bundle", precision=precision, max_len=2048,
        block_sizes=(4, 8), backend="tensorrt-rtx", report_prompts=0,
    )  # fmt: skip
    export(request)
    planned = plan(
        Bundle.open(request.out), load_library("tensorrt-rtx"), BuildRequest(compute_capabilities=DEFAULT_CAPABILITIES)
    )
    _, sidecar = build(planned, lambda *_: None)
    for engine in sidecar.engines:
        if engine.program in ("target", "draft"):
            profiles = len(sidecar.limits.block_sizes) + (engine.program == "target")
            assert engine.bytes < 1.05 * engine.weight_bytes + KERNELS * profiles
            assert not engine.decomposable
            assert engine.host_bytes < 3.5 * engine.weight_bytes + 2e8
