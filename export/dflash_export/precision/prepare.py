"""Look at a pair on real prompts, then decide what its formats need: ranges for int8, what fp16 can't hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from dflash_engines.errors import CheckpointError
from dflash_export.precision.calibration import Tokens, observe
from dflash_export.precision.formats import Findings, Formats
from dflash_export.precision.overflow import LARGEST, Overflow, overflows, tap_shift
from dflash_export.precision.smoothing import input_ranges

NOTHING = Findings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Formats that the pair can have, and what lowering it takes."""

    formats: Formats
    findings: Mapping[str, Findings]  # by program, for those that were looked at
    overflows: tuple[Overflow, ...] = ()

    def of(self, program: str) -> Findings:
        """A program's findings; all drafting programs share theirs."""
        return self.findings.get("draft" if program.startswith("draft") else program, NOTHING)


def prepare(
    models: Mapping[str, ir.Model], formats: Formats, prompts: Sequence[Tokens], block_size: int, mask: int
) -> Prepared:
    """Decide for `models`, target and draft as they were traced. Raises CheckpointError where fp16 can't be."""
    half = formats.float_type == "fp16"
    if not half and not formats.quantizes_activations:
        return Prepared(formats=formats, findings={})
    observed = observe(models, prompts, block_size, mask)
    ranges = {
        name: input_ranges(model, observed[name].inputs)
        if formats.quantizes_activations and formats.of(name) == "int8"
        else {}
        for name, model in models.items()
    }
    found = tuple(o for name, model in models.items() for o in overflows(name, model, observed[name]) if half)
    if hopeless := [overflow for overflow in found if not overflow.remedy]:
        formats, found = _without_fp16(formats, hopeless[0]), tuple(replace(o, remedy="bf16") for o in found)
    in_fp32 = [o for o in found if o.remedy == "fp32"]
    findings = {
        name: Findings(
            ranges=ranges[name],
            wide=frozenset(o.reader for o in in_fp32 if o.program == name),
            tap_shift=tap_shift(observed[name], model.graph),
        )
        for name, model in models.items()
    }
    return Prepared(formats=formats, findings=findings, overflows=found)


def _without_fp16(formats: Formats, overflow: Overflow) -> Formats:
    """bf16 where the backend has it. Raises CheckpointError where it doesn't."""
    if formats.backend == "onnxruntime":
        raise CheckpointError(
            f"fp16 ends at {LARGEST:.0f}, and {overflow.tensor}, read by {overflow.reader} in {overflow.program}, "
            f"reaches {overflow.largest:.3g} on the calibration prompts, too near or beyond; choose --precision fp32"
        )
    target, draft = ("bf16" if p == "fp16" else p for p in (formats.target, formats.draft))
    return replace(formats, target=target, draft=draft, quantized_in="bf16")
