"""An fp32 bundle in other number formats, without its checkpoints and without tracing again.

For comparing formats. It is not held against transformers as an export is: its golden cases are its own results.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from dflash_engines import golden
from dflash_engines.backend import Options
from dflash_engines.bundle import MANIFEST_FILE, Bundle
from dflash_engines.errors import CheckpointError
from dflash_engines.host_engine import declared_programs
from dflash_engines.manifest import Manifest
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_export.precision import report
from dflash_export.precision.calibration import Tokens
from dflash_export.precision.formats import CACHE_DTYPES, Formats, lower
from dflash_export.precision.prepare import Prepared, prepare
from dflash_export.seal import seal
from dflash_export.weights import WeightFile

TOLERANCE = 1.0
_NOT_COPIED = (MANIFEST_FILE, golden.FILE, "weights.bin", report.JSON, report.MARKDOWN)


def convert(bundle: Bundle, formats: Formats, prompts: Sequence[Tokens], out: Path) -> tuple[Bundle, Prepared]:
    """Write the bundle `out`; `prompts` calibrate it. Raises CheckpointError unless `bundle` is fp32 throughout."""
    manifest = bundle.manifest
    if {manifest.precision, manifest.draft_precision} != {"fp32"}:
        raise CheckpointError(f"{bundle.path} is {manifest.precision}; only an fp32 bundle can become another format")
    traced = [name for name in manifest.programs if not name.startswith("accept")]
    models = {name: ir.load(bundle.program(name)) for name in traced}
    looked_at = {name: models[name] for name in ("target", "draft")}
    prepared = prepare(looked_at, formats, prompts, manifest.block_size, manifest.mask_token_id)
    out.mkdir(parents=True)
    for name in manifest.files.keys() - {*_NOT_COPIED, *(manifest.programs[name] for name in traced)}:
        shutil.copyfile(bundle.file(name), out / name)
    with WeightFile(out / "weights.bin") as weights:
        for name, model in models.items():
            lowered = lower(model, name, prepared.formats, prepared.of(name))
            weights.take(lowered)
            ir.save(lowered, out / manifest.programs[name])
    converted = seal(out, _manifest(manifest, prepared.formats))
    if formats.backend == "onnxruntime" and bundle.has(golden.FILE):
        _record_golden(bundle, converted)
    return seal(out, converted.manifest), prepared


def _manifest(manifest: Manifest, formats: Formats) -> Manifest:
    changes: dict[str, object] = {
        "backend": formats.backend,
        "precision": formats.target,
        "draft_precision": formats.draft,
        "geometry": replace(manifest.geometry, cache_dtype=CACHE_DTYPES[formats.float_type]),
        "parity": {},
    }
    return manifest.model_copy(update=changes)


def _record_golden(fp32: Bundle, converted: Bundle) -> None:
    """The calls of the fp32 bundle, with the converted programs' results."""
    calls = golden.Golden.load(fp32.file(golden.FILE)).calls
    programs = OnnxRuntimePrograms(converted, Options())
    runner = golden.Runner(programs, declared_programs(converted.manifest), converted.manifest.limits)
    results = tuple(golden.digest(runner.run(call)) for call in calls)
    golden.Golden(calls=calls, results=results, tolerance=TOLERANCE).save(converted.path / golden.FILE)
