"""Before an fp16 program is made: which of its tensors would leave fp16's range, and what is done about each.

Taps are scaled, which is exact. A product stays in fp32. Queries, keys and values have nowhere else to go.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dflash_engines.lowerings.half_precision import FC, weight_of
from dflash_engines.lowerings.quantized_weights import products
from dflash_export.precision.calibration import Observed

LARGEST = float(np.finfo(np.float16).max)
HEADROOM = 4  # prompts that were not looked at may hold larger numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A tensor that would leave fp16's range, or come near its end."""

    program: str
    tensor: str
    reader: str  # the node that has it in fp16
    largest: float
    remedy: str  # "scaled by 2^-k", "fp32", or "" where there is none


def tap_shift(observed: Observed, graph: ir.Graph) -> int:
    """k for which the taps, and what `fc` makes of them, fit into fp16 when divided by 2^k."""
    fc = next((node for node in graph if node.name == FC), None)
    if fc is None:
        return 0
    largest = max(_magnitude(observed, fc.inputs[0]), _magnitude(observed, fc.outputs[0]))
    return max(0, math.ceil(math.log2(max(largest, 1e-9) * HEADROOM / LARGEST))) if math.isfinite(largest) else 0


def overflows(program: str, model: ir.Model, observed: Observed) -> Iterator[Overflow]:
    """Every node that would have a tensor beyond fp16, as the program was traced."""
    graph, shift = model.graph, tap_shift(observed, model.graph)
    in_half = {id(node) for node in products(graph, keep=())}
    for node in graph:
        if id(node) in in_half or node.op_type in ("Attention", "TensorScatter"):
            tensor, largest = _largest_of(node, observed)
            remedy = _remedy(node, shift)
            if largest * HEADROOM > LARGEST:
                yield Overflow(program=program, tensor=tensor, reader=str(node.name), largest=largest, remedy=remedy)


def _remedy(node: ir.Node, shift: int) -> str:
    if node.name == FC and shift:
        return f"scaled by 2^-{shift}"
    return "fp32" if node.op_type == "MatMul" else ""


def _largest_of(node: ir.Node, observed: Observed) -> tuple[str, float]:
    """The largest tensor at a node: an input, its output, or its weight."""
    values = [*node.inputs, *node.outputs]
    found = {str(v.name): _magnitude(observed, v) for v in values if v is not None}
    weight = weight_of(node.inputs[1]) if node.op_type == "MatMul" else None
    if weight is not None and weight.const_value is not None:
        found[str(weight.name)] = float(np.abs(weight.const_value.numpy()).max(initial=0.0))
    return max(found.items(), key=lambda item: item[1])


def _magnitude(observed: Observed, value: ir.Value | None) -> float:
    return observed.largest.get(str(value.name), 0.0) if value is not None else 0.0
