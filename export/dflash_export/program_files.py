"""The programs of a bundle on disk: traced, rewritten, lowered to the formats asked for, written."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx_ir as ir
from torch import nn

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the programs became."""

    prepared: Prepared
    bytes_fp32: int  # of the weights as they were traced, each counted once


def write_programs(
    folder: Path, modules: Modules, programs: Sequence[Program], formats: Formats, prompts: Sequence[Tokens],
    report: Report,
) -> Written:  # fmt: skip
    """Write `programs`, all but accept, and every variant of accept. `prompts` are what formats are calibrated on.

    Raises CheckpointError when they can't have those asked for.
    """
    models, torch_modules = {}, PytorchPrograms(modules).modules
    for program in programs:
        report(f"tracing {program.name}")
        models[program.name] = canonical(torch_modules[program.name], program)
    config = modules.draft.drafter.config
    report("choosing number formats")
    looked_at = {name: models[name] for name in ("target", "draft")}
    bytes_fp32 = _bytes(models.values())
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
    return Written(prepared=prepared, bytes_fp32=bytes_fp32)


def _bytes(models: Iterable[ir.Model]) -> int:
    """Of all weights; programs share the embedding and the head, as the same memory."""
    tensors = [
        v.const_value for model in models for v in model.graph.initializers.values() if v.const_value is not None
    ]
    return sum({tensor.numpy().ctypes.data: tensor.nbytes for tensor in tensors}.values())


def canonical(module: nn.Module, program: Program) -> ir.Model:
    """A program as every lowering finds it: traced, its weights named and merged."""
    model = trace(module, program)
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
