"""Runs one program's graph on the CPU: in ONNX Runtime, or in PyTorch for what that can't do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from dflash_export.precision.graph_in_torch import TorchGraph, to_numpy, to_torch

Arrays = dict[str, NDArray[Any]]
Run = Callable[[ir.Model, Arrays], Arrays]
GUARD = 8  # cache rows behind the prompt


def prompt_inputs(model: ir.Model, tokens: Sequence[int]) -> Arrays:
    """A target call over a whole prompt, all rows' logits."""
    count = len(tokens)
    at = {"tokens": np.array([tokens]), "start": np.array([0]), "length": np.array([count]),
          "rows": np.arange(count)[None]}  # fmt: skip
    return at | empty_caches(model, count + GUARD)


def block_inputs(model: ir.Model, caches: Mapping[str, NDArray[Any]], anchor: int, start: int, mask: int) -> Arrays:
    """A draft call of 8 tokens at row `start` over the caches that a target call has written."""
    tokens = np.full((1, GUARD), mask)
    tokens[0, 0] = anchor
    at = {"tokens": tokens, "start": np.array([start]), "length": np.array([start + GUARD])}
    names = [str(v.name) for v in model.graph.inputs if v.name not in at]
    return at | {name: caches[f"new_{name}"] for name in names}


def empty_caches(model: ir.Model, rows: int) -> Arrays:
    """Zeros of one slot, in the program's own type."""
    caches = [v for v in model.graph.inputs if v.shape is not None and len(v.shape) == 4]
    return {str(v.name): np.zeros((1, v.shape[1], rows, v.shape[3]), v.dtype.numpy()) for v in caches}  # type: ignore[arg-type, index, union-attr]


def in_onnxruntime(model: ir.Model, inputs: Arrays) -> Arrays:
    """All outputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def in_torch(model: ir.Model, inputs: Arrays) -> Arrays:
    """All outputs."""
    found = TorchGraph(model).run({name: to_torch(array) for name, array in inputs.items()})
    return {name: to_numpy(value) for name, value in found.items()}
