"""The programs of a bundle on disk: traced, rewritten, lowered to the formats asked for, written."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import onnx_ir as ir

from dflash_engines import contract
from dflash_engines.contract import AcceptVariant, Program
from dflash_export import rewrite
from dflash_export.precision.formats import Formats, lower
from dflash_export.precision.prepare import Prepared, prepare
from dflash_export.programs import accept
from dflash_export.programs.build import Modules
from dflash_export.pytorch_backend import PytorchPrograms
from dflash_export.trace import trace
from dflash_export.weights import WeightFile

Report = Callable[[str], object]  # told what begins now
Tokens = Sequence[int]


def write_programs(
    folder: Path, modules: Modules, programs: Sequence[Program], formats: Formats, prompts: Sequence[Tokens],
    report: Report,
) -> Prepared:  # fmt: skip
    """Write `programs`, all but accept, and every variant of accept. `prompts` are what formats are calibrated on.

    Returns the formats that the programs got. Raises CheckpointError when they can't have those asked for.
    """
    models, torch_modules = {}, PytorchPrograms(modules).modules
    for program in programs:
        report(f"tracing {program.name}")
        models[program.name] = _canonical(trace(torch_modules[program.name], program))
    config = modules.draft.drafter.config
    report("choosing number formats")
    looked_at = {name: models[name] for name in ("target", "draft")}
    prepared = prepare(looked_at, formats, prompts, config.block_size, config.mask_token_id)
    with WeightFile(folder / "weights.bin") as weights:
        for name in list(models):
            model = lower(models.pop(name), name, prepared.formats, prepared.of(name))
            weights.take(model)
            ir.save(model, folder / f"{name}.onnx")
    report("tracing accept")
    for variant in modules.accepts:
        content = _traced_accept(variant, modules.geometry.vocab_size, config.mask_token_id)
        (folder / f"{variant.name}.onnx").write_bytes(content)
    return prepared


def _canonical(model: ir.Model) -> ir.Model:
    rewrite.name_weights(model.graph)
    rewrite.merge_products(model.graph)
    rewrite.strip(model)
    return model


@cache
def _traced_accept(variant: AcceptVariant, vocab_size: int, mask_token_id: int) -> bytes:
    """The ONNX file; without weights, it is the same for all pairs of a vocabulary."""
    program = contract.accept(contract.weightless(vocab_size), variant)
    model = trace(accept.variants(mask_token_id)[variant], program)
    rewrite.strip(model)
    content: bytes = ir.serde.serialize_model(model).SerializeToString()
    return content
