"""W8A8 in standard operators: int8 weights a column, and int8 inputs with one fixed step for each product.

A step that followed the numbers of a call would let rejected rows change accepted ones, and a step for each row is
not what TensorRT's int8 products take. Smoothing (SmoothQuant, arXiv 2211.10438) makes a fixed step bearable: channel
c of the input is divided by smoothing[c], row c of the weight multiplied by it. The type of steps is the product's,
so this comes after `half_precision`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dflash_engines.lowerings.half_precision import constant
from dflash_engines.lowerings.quantized_weights import int8_weight, matrix, products, swept, weight_type

STEPS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """How the input of one product becomes int8."""

    smoothing: NDArray[np.float32]  # [rows of the weight], all ones for none
    largest: float  # magnitude, after smoothing, that 127 stands for


def int8_products(model: ir.Model, ranges: Mapping[str, InputRange], *, keep: Collection[str]) -> ir.Model:
    """A copy whose products named in `ranges` are W8A8. Those in `keep` stay, others get int8 weights alone."""
    lowered = model.clone()
    graph = lowered.graph
    for node in products(graph, keep):
        found = ranges.get(node.name or "")
        if found is not None:
            weight = matrix(node) * found.smoothing[:, None]
            _smooth(graph, node, found.smoothing)
            _quantize_input(graph, node, found.largest)
            int8_weight(graph, node, weight)
        else:
            int8_weight(graph, node, matrix(node))
    return swept(lowered)


def _smooth(graph: ir.Graph, node: ir.Node, smoothing: NDArray[np.float32]) -> None:
    """Multiply the product's input by 1 / smoothing, in fp32 where it comes from fp32."""
    x = node.inputs[0]
    assert x is not None
    if (smoothing == 1).all():
        return
    cast = x.producer()
    wide = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    dtype = weight_type(node) if wide is None else np.dtype(np.float32)
    factor = constant(graph, f"{node.name}.smoothing", (1 / smoothing).astype(dtype))
    smooth = ir.node("Mul", [x if wide is None else wide, factor], name=f"{node.name}/smooth")
    nodes = [smooth]
    if wide is not None:
        nodes.append(ir.node("Cast", [smooth.outputs[0]], {"to": x.dtype}, name=f"{node.name}/smooth_half"))
    for added in nodes:
        value = added.outputs[0]
        value.name, value.shape = added.name, x.shape
        value.type = factor.type if added is smooth else x.type
    graph.insert_before(node, nodes)
    node.replace_input_with(0, nodes[-1].outputs[0])


def _quantize_input(graph: ir.Graph, node: ir.Node, largest: float) -> None:
    x = node.inputs[0]
    assert x is not None
    step = constant(graph, f"{node.name}.input_scale", np.array(largest / STEPS).astype(weight_type(node)))
    zero = constant(graph, f"{node.name}.input_zero", np.array(0, np.int8))
    quantize = ir.node("QuantizeLinear", [x, step, zero], name=f"{node.name}/input_q")
    dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], step, zero], name=f"{node.name}/input")
    for added, of_type in ((quantize, zero), (dequantize, step)):
        value = added.outputs[0]
        value.name, value.type, value.shape = added.name, of_type.type, x.shape
    graph.insert_before(node, [quantize, dequantize])
    node.replace_input_with(0, dequantize.outputs[0])
