"""The tiny pair through compiled engines: TensorRT-RTX, TensorRT and ONNX Runtime on CUDA, where they are installed."""

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

from scripts.gpu_check.lossless import ANSWERS, TINY, agreements
from scripts.gpu_check.machine import require_gpu
from scripts.gpu_check.sections import Result, SkippedSectionError

BACKENDS = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt", "onnxruntime-cuda": "onnxruntime"}
_MAX_LEN, _BLOCK = 256, 8


def compiled(rehearse: bool) -> Result:
    """Each backend: exported, built, proven by its golden cases, and its answers against the CPU's."""
    installed = {backend: module for backend, module in BACKENDS.items() if importlib.util.find_spec(module)}
    if rehearse:
        raise SkippedSectionError(f"needs a GPU; installed are {sorted(installed)}")
    require_gpu()
    if not installed:
        raise SkippedSectionError("needs one of the packages tensorrt_rtx, tensorrt, onnxruntime-gpu")
    try:
        from dflash_export.pipeline import ExportRequest, export
    except ImportError as e:
        raise SkippedSectionError(f"needs the packages of the extra 'export': {e}") from e
    with tempfile.TemporaryDirectory() as folder:
        bundle = export(
            ExportRequest(
                target=str(TINY / "target"), drafter=str(TINY / "drafter"), out=Path(folder) / "bundle",
                max_len=_MAX_LEN, prefill_chunk=16, block_sizes=(_BLOCK,),
            )
        )  # fmt: skip
        return {backend: _outcome(backend, bundle) for backend in installed}


def _outcome(backend: str, bundle: Any) -> Any:
    """What one backend came to; its faults are findings too."""
    from dflash_engines.errors import DflashError

    try:
        return _checked(backend, bundle)
    except DflashError as e:
        return f"{type(e).__name__}: {e}"


def _checked(backend: str, bundle: Any) -> Result:
    from dflash_engines.backend import Options, load_engine

    if backend != "onnxruntime-cuda":
        bundle = _built(bundle, backend)
    engine: Any = load_engine(bundle, backend, Options())  # proves itself
    same = agreements(engine, json.loads(ANSWERS.read_text(encoding="utf-8")))
    counts = engine.counts
    engine.close()
    return {"golden": "passed", **same, "replays": counts.replays, "why": counts.reason}


def _built(bundle: Any, backend: Any) -> Any:
    from dflash_engines.tensorrt.build import BuildRequest, build, plan
    from dflash_engines.tensorrt.library import load_library
    from dflash_engines.tensorrt.machine import compute_capability

    aimed = (compute_capability(),) if backend == "tensorrt-rtx" else ()
    request = BuildRequest(compute_capabilities=aimed, block_sizes=(_BLOCK,))
    return build(plan(bundle, load_library(backend), request), lambda _what, _part: None)[0]
