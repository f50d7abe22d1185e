"""torch program → ONNX graph: names, types and dynamic sizes come from the contract, never from the example inputs."""

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import Sequential
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass
from torch import Tensor, nn

from dflash_engines.contract import Binding, Dim, Dtype, Program
from dflash_export import ops

# Example sizes: all different, none 1 (torch.export makes constants of 0 and 1 and merges equal ones).
_EXAMPLE = {Dim.SLOTS: 2, Dim.ROWS_IN: 5, Dim.ROWS_OUT: 3, Dim.BLOCK: 7, Dim.CACHE_ROWS: 19}
_LARGEST = {
    Dim.SLOTS: 1 << 10,
    Dim.ROWS_IN: 1 << 16,
    Dim.ROWS_OUT: 1 << 16,
    Dim.BLOCK: 1 << 10,
    Dim.CACHE_ROWS: 1 << 24,
}
_SMALLEST = {Dim.BLOCK: 2}
_TORCH = {Dtype.INT64: torch.int64, Dtype.INT32: torch.int32, Dtype.FLOAT: torch.float32,
          Dtype.FLOAT16: torch.float16, Dtype.BFLOAT16: torch.bfloat16, Dtype.BOOL: torch.bool}  # fmt: skip


def example(binding: Binding) -> Tensor:
    """A tensor of its own for each input: torch.export merges inputs that are one object."""
    shape = [_EXAMPLE[d] if isinstance(d, Dim) else d for d in binding.shape]
    value = torch.zeros(shape, dtype=_TORCH[binding.dtype])
    return value + 1 if binding.name in ("length", "count", "forced") else value


def trace(module: nn.Module, program: Program) -> ir.Model:
    """The ONNX form of `module`, with the bindings of `program` (inputs beyond forward's own go to its *args)."""
    sizes = {d: torch.export.Dim(str(d), min=_SMALLEST.get(d, 1), max=_LARGEST[d]) for d in Dim}
    named, rest = _parameters(module)
    plain, others = program.inputs[: len(named)], program.inputs[len(named) :]
    dynamic: dict[str, Any] = {name: _dynamic(b, sizes) for name, b in zip(named, plain, strict=True)}
    if others:
        dynamic[rest] = tuple(_dynamic(b, sizes) for b in others)
    with torch.no_grad(), _quiet():
        onnx_program = torch.onnx.export(
            module,
            tuple(example(b) for b in program.inputs),
            dynamo=True,
            opset_version=ops.OPSET,
            dynamic_shapes=dynamic,
            input_names=[b.name for b in program.inputs],
            output_names=[b.name for b in program.outputs],
            custom_translation_table=ops.TRANSLATIONS,
            verbose=False,
        )
    assert onnx_program is not None
    model = Sequential(CommonSubexpressionEliminationPass(), RemoveUnusedNodesPass())(onnx_program.model).model
    _declare(model, program)
    return model


def _parameters(module: nn.Module) -> tuple[list[str], str]:
    """The names of forward's arguments, and of its *args ("" without)."""
    kinds = {p.name: p.kind for p in inspect.signature(module.forward).parameters.values()}
    rest = [name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL]
    return [name for name in kinds if name not in rest], "".join(rest)


def _dynamic(binding: Binding, sizes: dict[Dim, Any]) -> dict[int, Any]:
    return {axis: sizes[d] for axis, d in enumerate(binding.shape) if isinstance(d, Dim)}


def _declare(model: ir.Model, program: Program) -> None:
    """Write the contract's own dimension names into the graph's border."""
    for values, bindings in ((model.graph.inputs, program.inputs), (model.graph.outputs, program.outputs)):
        for value, binding in zip(values, bindings, strict=True):
            value.shape = ir.Shape([str(d) if isinstance(d, Dim) else d for d in binding.shape])
            value.dtype = ir.DataType[binding.dtype.name]
            value.doc_string = binding.meaning
    model.graph.name, model.producer_name = program.name, "dflash-trt"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's advice is for those who call it by hand; its errors are exceptions and still get through."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
