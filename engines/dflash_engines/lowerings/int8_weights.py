"""ONNX Runtime on the CPU: weights of products as int8, a scale for each block of 32, by onnxruntime's quantiser.

`MatMulNBits` is a contrib operator: the graph is no longer standard, so it passes a parity gate of its own.
Activations are quantised row by row inside the kernel, so a rejected row can't change an accepted one.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from onnx import ModelProto

BLOCK = 32


def int8_weights(model: ModelProto, keep: Collection[str]) -> ModelProto:
    """The model with each MatMul by a constant as MatMulNBits, but for the nodes named in `keep`."""
    with _logging_untouched():
        from onnxruntime.quantization.matmul_nbits_quantizer import (
            DefaultWeightOnlyQuantConfig,
            MatMulNBitsQuantizer,
        )

    config = DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, accuracy_level=4, bits=8)
    quantizer = MatMulNBitsQuantizer(model, nodes_to_exclude=list(keep), algo_config=config)
    quantizer.process()
    lowered: ModelProto = quantizer.model.model
    return lowered


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
