"""Which number formats a bundle may have, and which lowerings make them out of the traced programs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from dflash_engines.contract import Dtype
from dflash_engines.errors import CheckpointError
from dflash_engines.lowerings import half_precision
from dflash_engines.lowerings.int8_activations import InputRange, int8_products
from dflash_engines.lowerings.matmul_nbits import matmul_nbits
from dflash_engines.lowerings.quantized_weights import int4_weights, int8_weights, products
from dflash_engines.manifest import Backend, Precision

FloatType = Literal["fp32", "fp16", "bf16"]
CACHE_DTYPES: dict[FloatType, Dtype] = {"fp32": Dtype.FLOAT, "fp16": Dtype.FLOAT16, "bf16": Dtype.BFLOAT16}
_BITS: dict[Precision, Literal[4, 8]] = {"int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """What was asked for. Raises CheckpointError for what can't be."""

    backend: Backend = "onnxruntime"
    target: Precision = "fp32"
    draft: Precision = "fp32"
    weight_only: bool = False  # int8 of weights alone; what ONNX Runtime always does, and TensorRT rarely fast
    quantize_head: bool = False  # the target's; the drafter's head always is
    quantized_in: FloatType | None = None  # what quantised products compute in, None for the backend's usual one

    def __post_init__(self) -> None:
        chosen = {p for p in (self.target, self.draft) if p not in _BITS}
        if len(chosen) > 1:
            raise CheckpointError(
                f"precision {self.target} and draft precision {self.draft} can't be in one bundle: both programs write "
                "the drafter's caches, which have one type; choose the same, or int8 or int4 for one of them"
            )
        if self.backend == "onnxruntime" and "bf16" in chosen:
            raise CheckpointError(
                "ONNX Runtime multiplies no bf16 on the CPU; choose fp32, fp16, int8 or int4, or --backend tensorrt"
            )

    @property
    def float_type(self) -> FloatType:
        """Of caches, attention, and products that aren't quantised."""
        for precision in (self.target, self.draft):
            if precision in CACHE_DTYPES:
                return precision
        return self.quantized_in or ("fp32" if self.backend == "onnxruntime" else "fp16")

    def of(self, program: str) -> Precision:
        """The precision of a program's weights."""
        return self.draft if program.startswith("draft") else self.target

    @property
    def quantizes_activations(self) -> bool:
        """Whether ranges of products' inputs are needed."""
        return self.backend != "onnxruntime" and not self.weight_only and "int8" in (self.target, self.draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a look at real prompts says about one program."""

    ranges: Mapping[str, InputRange] = field(default_factory=dict)  # products whose input may become int8
    wide: frozenset[str] = frozenset()  # products that would leave fp16's range, and so stay fp32
    tap_shift: int = 0  # taps are divided by 2^tap_shift before fc, in fp16


def lower(model: ir.Model, program: str, formats: Formats, findings: Findings) -> ir.Model:
    """The program in the formats asked for."""
    precision, keep = formats.of(program), kept(model.graph, formats) | findings.wide
    lowered = _in_float(model, formats.float_type, findings)
    if precision not in _BITS:
        return lowered
    if formats.backend == "onnxruntime":
        return matmul_nbits(lowered, _BITS[precision], keep=keep)
    if precision == "int4":
        return int4_weights(lowered, keep=keep)
    if formats.weight_only:
        return int8_weights(lowered, keep=keep)
    return int8_products(lowered, findings.ranges, keep=keep)


def _in_float(model: ir.Model, float_type: FloatType, findings: Findings) -> ir.Model:
    if float_type == "fp16":
        return half_precision.fp16(model, keep=findings.wide, tap_shift=findings.tap_shift)
    return half_precision.bf16(model) if float_type == "bf16" else model


def kept(graph: ir.Graph, formats: Formats) -> frozenset[str]:
    """Products that are never quantised: `fc`, whose inputs are large and rare, and the target's head unless asked."""
    heads: Collection[str] = () if formats.quantize_head else target_heads(graph)
    return frozenset({half_precision.FC, *heads})


def target_heads(graph: ir.Graph) -> set[str]:
    """The product that the output `logits` comes from; none in programs without logits."""
    known = {id(node): node for node in products(graph, keep=())}
    waiting = [value.producer() for value in graph.outputs if value.name == "logits"]
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) in known:
            return {str(node.name)}
        waiting.extend(value.producer() for value in (node.inputs if node is not None else ()) if value is not None)
    return set()
