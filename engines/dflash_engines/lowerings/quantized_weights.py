"""Quantised weights in standard operators, as TensorRT reads them: a DequantizeLinear before each product.

int8 has a scale for each column, int4 one for each block of 64 or 32 rows of a column. Symmetric, rounded to nearest;
the largest weights of an int4 block are clipped where the others gain more than they lose. The scale's type is the
product's, so this comes after `half_precision`.
"""

from collections.abc import Collection

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dflash_engines.lowerings.half_precision import constant, weight_of

BLOCKS = (64, 32)  # rows; the first that divides the weight
_INT4 = np.dtype(ml_dtypes.int4)
_SMALLEST = np.array(2.0**-18)  # below, fp16 has too few digits left for a step
_INT4_STEPS = 7
_CLIPS = (1.0, 0.92, 0.85, 0.78)
Weights = NDArray[np.float32]


def int8_weights(model: ir.Model, *, keep: Collection[str]) -> ir.Model:
    """A copy with the weights of all products as int8 with a scale a column, but for nodes named in `keep`."""
    lowered = model.clone()
    for node in products(lowered.graph, keep):
        int8_weight(lowered.graph, node, matrix(node))
    return swept(lowered)


def int4_weights(model: ir.Model, *, keep: Collection[str]) -> ir.Model:
    """A copy with the weights of all products as int4 in blocks of rows, but for nodes named in `keep`.

    A product whose rows no block divides gets int8 instead.
    """
    lowered = model.clone()
    for node in products(lowered.graph, keep):
        weight = matrix(node)
        block = next((size for size in BLOCKS if weight.shape[0] % size == 0), None)
        if block is None:
            int8_weight(lowered.graph, node, weight)
        else:
            _int4_weight(lowered.graph, node, weight, block)
    return swept(lowered)


def products(graph: ir.Graph, keep: Collection[str]) -> list[ir.Node]:
    """MatMul nodes with a constant matrix that may be quantised."""
    return [
        node
        for node in graph
        if node.op_type == "MatMul" and node.name not in keep and weight_of(node.inputs[1]) is not None
    ]


def matrix(node: ir.Node) -> Weights:
    """The product's weight [rows in, columns out] in fp32."""
    source = weight_of(node.inputs[1])
    assert source is not None
    assert source.const_value is not None
    values = source.const_value.numpy().astype(np.float32)
    return values if source is node.inputs[1] else values.T


def int8_weight(graph: ir.Graph, node: ir.Node, weight: Weights) -> None:
    """Let the product read `weight` through int8."""
    dtype = weight_type(node)
    scale = _scale(np.abs(weight).max(0), 127, dtype)  # [N]
    values = np.clip(np.rint(weight / scale.astype(np.float32)), -127, 127).astype(np.int8)
    _read_through(graph, node, values, scale, {"axis": 1})


def _int4_weight(graph: ir.Graph, node: ir.Node, weight: Weights, block: int) -> None:
    rows, columns = weight.shape
    blocks = weight.reshape(rows // block, block, columns)
    scale = _scale(_clipped(blocks), _INT4_STEPS, weight_type(node))  # [K / block, N]
    values = _rounded(blocks, scale.astype(np.float32))
    _read_through(graph, node, values.reshape(rows, columns).astype(_INT4), scale, {"axis": 0, "block_size": block})


def _clipped(blocks: Weights) -> Weights:
    """The magnitude [K / block, N] to clip each block at: what rounds its weights with the smallest squared error."""
    largest = np.abs(blocks).max(1)
    best: Weights = largest
    least = np.full(largest.shape, np.inf)
    for share in _CLIPS:
        scale = np.maximum(largest * np.float32(share) / _INT4_STEPS, np.finfo(np.float32).tiny)
        error = np.square(_rounded(blocks, scale) * scale[:, None] - blocks).sum(1)
        best, least = np.where(error < least, largest * np.float32(share), best), np.minimum(error, least)
    return best


def _rounded(blocks: Weights, scale: Weights) -> Weights:
    rounded: Weights = np.clip(np.rint(blocks / scale[:, None]), -_INT4_STEPS - 1, _INT4_STEPS)
    return rounded


def weight_type(node: ir.Node) -> np.dtype[np.generic]:
    """The type that the product computes in."""
    source = weight_of(node.inputs[1])
    assert source is not None
    assert source.const_value is not None
    return source.const_value.numpy().dtype


def _scale(largest: Weights, steps: int, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """largest / steps in the product's type; 1 where all is zero, and never a zero of underflow."""
    scale = np.where(largest > 0, largest / steps, 1.0).astype(dtype)
    return np.maximum(scale, _SMALLEST.astype(dtype))


def _read_through(
    graph: ir.Graph, node: ir.Node, values: NDArray[np.generic], scale: NDArray[np.generic], attributes: dict[str, int]
) -> None:
    quantized = constant(graph, f"{node.name}.weight_q", values)
    step = constant(graph, f"{node.name}.weight_scale", scale)
    dequantize = ir.node("DequantizeLinear", [quantized, step], attributes, name=f"{node.name}/weight")
    output = dequantize.outputs[0]
    output.name, output.type, output.shape = dequantize.name, step.type, ir.Shape(values.shape)
    graph.insert_before(node, dequantize)
    node.replace_input_with(1, output)


def swept(model: ir.Model) -> ir.Model:
    """The model without the weights, and their transposes, that nobody reads any more."""
    graph = model.graph
    for node in [n for n in graph if n.op_type == "Transpose" and not n.outputs[0].uses()]:
        graph.remove(node, safe=True)
    used = {value.name for node in graph for value in node.inputs if value is not None}
    for name in [n for n in graph.initializers if n not in used]:
        graph.initializers.pop(name)
    return model
