"""A bundle's fp32 programs in another number format, without tracing them again."""

from pathlib import Path

import onnx_ir as ir

from dflash_engines.bundle import Bundle
from dflash_export.precision import calibration
from dflash_export.precision.formats import Formats, lower
from dflash_export.precision.prepare import Prepared, prepare
from dflash_export.weights import WeightFile


def canonical(bundle: Bundle) -> dict[str, ir.Model]:
    """Target and draft of an fp32 bundle, as they were traced."""
    assert bundle.manifest.precision == bundle.manifest.draft_precision == "fp32"
    return {name: ir.load(bundle.program(name)) for name in ("target", "draft")}


def prompts(vocab_size: int) -> list[list[int]]:
    """Token ids for calibration that any vocabulary has."""
    texts = calibration.read_prompts(calibration.DEFAULT)
    return [[byte % vocab_size for byte in text.encode()[:24]] for text in texts[:6]]


def prepared(bundle: Bundle, formats: Formats) -> Prepared:
    """The formats with what they need, from a look at the bundle's own programs."""
    manifest = bundle.manifest
    tokens = prompts(manifest.geometry.vocab_size)
    return prepare(canonical(bundle), formats, tokens, manifest.block_size, manifest.mask_token_id)


def write_lowered(bundle: Bundle, formats: Formats, folder: Path) -> dict[str, Path]:
    """Write target.onnx, draft.onnx and their weights.bin in `formats`; returns the programs' files by name."""
    found, files = prepared(bundle, formats), {}
    with WeightFile(folder / "weights.bin") as weights:
        for name, model in canonical(bundle).items():
            model = lower(model, name, found.formats, found.of(name))
            weights.take(model)
            files[name] = folder / f"{name}.onnx"
            ir.save(model, files[name])
    return files
