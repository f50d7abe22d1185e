"""ONNX Runtime: weights of products as int8 or int4, a scale for each block of 32, by onnxruntime's quantiser.

`MatMulNBits` is a contrib operator: the graph is no longer standard, so it passes a parity gate of its own.
Activations are quantised row by row inside the kernel, so a rejected row can't change an accepted one.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dflash_engines.lowerings.half_precision import constant
from dflash_engines.lowerings.quantized_weights import matrix, products, swept, weight_type

BLOCK = 32
_DOMAIN = "com.microsoft"
_INT8_ACTIVATIONS = 4  # the kernel's accuracy level: faster than fp32 inside, and exact sums
Quantize = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]  # to packed, scales, zero points


def matmul_nbits(model: ir.Model, bits: Literal[4, 8], *, keep: Collection[str]) -> ir.Model:
    """A copy with each product by a constant as MatMulNBits, but for the nodes named in `keep`."""
    lowered = model.clone()
    quantize = _quantizer(bits)
    for node in products(lowered.graph, keep):
        _replace(lowered.graph, node, bits, quantize)
    lowered.graph.opset_imports[_DOMAIN] = 1
    return swept(lowered)


def _replace(graph: ir.Graph, node: ir.Node, bits: int, quantize: Quantize) -> None:
    weight = matrix(node).astype(weight_type(node))
    rows, columns = weight.shape
    packed, scales, _ = quantize(weight)
    inputs = [
        node.inputs[0],
        constant(graph, f"{node.name}.weight_q", packed),
        constant(graph, f"{node.name}.weight_scale", scales),
    ]
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": BLOCK, "accuracy_level": _INT8_ACTIVATIONS}
    product = ir.node("MatMulNBits", inputs, attributes, domain=_DOMAIN, name=node.name)
    before, after = node.outputs[0], product.outputs[0]
    after.name, after.type, after.shape = before.name, before.type, before.shape
    graph.insert_before(node, product)
    ir.convenience.replace_all_uses_with(before, after, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _quantizer(bits: int) -> Quantize:
    with _logging_untouched():
        from onnxruntime.quantization.matmul_nbits_quantizer import (
            DefaultWeightOnlyQuantConfig,
            DefaultWeightOnlyQuantizer,
        )

    config = DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, bits=bits)
    quantize: Quantize = DefaultWeightOnlyQuantizer(config).qbits_block_quant
    return lambda weight: quantize(np.ascontiguousarray(weight))


@contextmanager
def _logging_untouched() -> Iterator[None]:
    """The quantiser's module sets up the root logger when it is imported; that is the application's to do."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
