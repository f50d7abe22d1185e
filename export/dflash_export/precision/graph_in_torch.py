"""A program's ONNX graph, run node by node in PyTorch in the types it is written in.

For what ONNX Runtime can't do on the CPU (bf16), and to look at every tensor on the way: calibration, and the search
for what would leave fp16's range. Attention, cache updates and rotations are the oracle's own operators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dflash_engines.backend import Buffers, Options, Programs, Run
from dflash_engines.bundle import Bundle
from dflash_engines.errors import EngineError
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_export import ops as ops  # registers torch.ops.dflash
from dflash_export.programs.build import Modules
from dflash_export.pytorch_backend import PytorchPrograms

Attributes = Mapping[str, Any]
Observe = Callable[[str, Tensor], None]  # told the name and content of every floating-point tensor
_BFLOAT16, _INT4 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.int4)
_TORCH = {
    ir.DataType.FLOAT: torch.float32, ir.DataType.FLOAT16: torch.float16, ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.INT64: torch.int64, ir.DataType.INT32: torch.int32, ir.DataType.BOOL: torch.bool,
}  # fmt: skip


def to_torch(array: NDArray[Any]) -> Tensor:
    """A tensor over a copy of the array; int4 becomes int8, which holds it."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, np.int8 if array.dtype == _INT4 else None))


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """The tensor's content."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(_BFLOAT16)
    return tensor.numpy()


class TorchGraph:
    """One program. Raises EngineError for an operator it doesn't know."""

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self.inputs = [str(v.name) for v in graph.inputs]
        self.outputs = [str(v.name) for v in graph.outputs]
        self.constants = {n: to_torch(v.const_value.numpy()) for n, v in graph.initializers.items() if v.const_value}
        self.caches = dict(_cache(value) for value in graph.inputs if value.shape is not None and len(value.shape) == 4)
        self.nodes = [_Node(node) for node in graph]
        self.last_use = {name: at for at, node in enumerate(self.nodes) for name in node.inputs}

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Tensor], observe: Observe = lambda *_: None) -> dict[str, Tensor]:
        """The program's outputs; a cache is a new tensor."""
        values = dict(inputs)
        for at, node in enumerate(self.nodes):
            for name, value in zip(node.outputs, node.run(values, self.constants), strict=True):
                values[name] = value
                if value.is_floating_point():
                    observe(name, value)
            for used in node.inputs:
                if self.last_use[used] == at and used is not None and used not in self.outputs:
                    values.pop(used, None)
        return {name: values[name] for name in self.outputs}

    def empty_caches(self, rows: int) -> dict[str, Tensor]:
        """Zeros for the caches of one slot."""
        return {name: torch.zeros(1, heads, rows, dim, dtype=of) for name, (heads, dim, of) in self.caches.items()}


def _cache(value: ir.Value) -> tuple[str, tuple[int, int, torch.dtype]]:
    """A cache's name, heads, head size and type."""
    assert value.shape is not None
    assert value.dtype is not None
    heads, dim = value.shape[1], value.shape[3]
    assert isinstance(heads, int)
    assert isinstance(dim, int)
    return str(value.name), (heads, dim, _TORCH[value.dtype])


class TorchGraphPrograms:
    """Implements `backend.Programs` over a bundle's own files; `others` run what has no weights (accept)."""

    def __init__(self, bundle: Bundle, others: Programs) -> None:
        names = [name for name in bundle.manifest.programs if not name.startswith("accept")]
        self.graphs = {name: TorchGraph(ir.load(bundle.program(name))) for name in names}
        self.others = others

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        """See `backend.Programs.bind`."""
        if program not in self.graphs:
            return self.others.bind(program, inputs, outputs)
        graph = self.graphs[program]

        def run() -> None:
            found = graph.run({name: to_torch(array) for name, array in inputs.items()})
            for name, array in outputs.items():
                np.copyto(array, to_numpy(found[name]))

        return run


def runnable(bundle: Bundle, modules: Modules) -> Programs:
    """The bundle's programs in ONNX Runtime, or where it isn't their backend, as close to it as this machine can."""
    if bundle.manifest.backend == "onnxruntime":
        return OnnxRuntimePrograms(bundle, Options())
    return TorchGraphPrograms(bundle, PytorchPrograms(modules))


class _Node:
    """A node with its attributes read once."""

    def __init__(self, node: ir.Node) -> None:
        if node.op_type not in _OPERATORS:
            raise EngineError(
                f"PyTorch runs no {node.op_type} here ({node.name}); use a precision that ONNX Runtime runs"
            )
        self.function = _OPERATORS[node.op_type]
        self.attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        self.inputs = [value.name if value is not None else None for value in node.inputs]
        self.outputs = [str(value.name) for value in node.outputs]

    def run(self, values: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """The node's outputs."""
        inputs = [None if n is None else values[n] if n in values else constants[n] for n in self.inputs]
        found = self.function(self.attributes, *inputs)
        return (found,) if isinstance(found, Tensor) else found


def _cast(a: Attributes, x: Tensor) -> Tensor:
    return x.to(_TORCH[ir.DataType(a["to"])])


def _reshape(a: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = [x.shape[i] if size == 0 and not a.get("allowzero") else size for i, size in enumerate(shape.tolist())]
    return x.reshape(sizes)


def _slice(_: Attributes, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor, steps: Tensor | None = None) -> Tensor:
    for i, axis in enumerate(axes.tolist()):
        step = 1 if steps is None else int(steps[i])
        x = x.movedim(axis, 0)[int(starts[i]) : min(int(ends[i]), x.shape[axis]) : step].movedim(0, axis)
    return x


def _gather(a: Attributes, x: Tensor, index: Tensor) -> Tensor:
    axis = a.get("axis", 0) % x.dim()
    found = x.index_select(axis, index.reshape(-1))
    return found.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _gather_nd(_: Attributes, x: Tensor, index: Tensor) -> Tensor:
    return x[index.unbind(-1)]


def _divide(_: Attributes, x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _clip(_: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x if low is None and high is None else x.clamp(low, high)


def _pad(_: Attributes, x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None) -> Tensor:
    where = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in axes.tolist()]
    around = [0] * (2 * x.dim())  # PyTorch counts from the last axis, before and after each
    for i, axis in enumerate(where):
        around[2 * (x.dim() - 1 - axis)] = int(pads[i])
        around[2 * (x.dim() - 1 - axis) + 1] = int(pads[i + len(where)])
    return F.pad(x, around, value=0.0 if value is None else float(value))


def _unsqueeze(_: Attributes, x: Tensor, axes: Tensor) -> Tensor:
    rank = x.dim() + axes.numel()
    for axis in sorted(axis % rank for axis in axes.reshape(-1).tolist()):
        x = x.unsqueeze(axis)
    return x


def _squeeze(_: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes.reshape(-1).tolist()))


def _shape(a: Attributes, x: Tensor) -> Tensor:
    return torch.tensor(list(x.shape)[a.get("start", 0) : a.get("end")])


def _reduced(a: Attributes, function: Callable[..., Tensor], x: Tensor, axes: Tensor) -> Tensor:
    return function(x, tuple(axes.tolist()), keepdim=bool(a.get("keepdims", 1)))


def _norm(a: Attributes, x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, a["epsilon"])


def _attention(a: Attributes, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    found: Tensor = torch.ops.dflash.attention(q, k, v, mask, a["scale"], a.get("softcap", 0.0))
    return found


def _write(_: Attributes, cache: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    found: Tensor = torch.ops.dflash.write_rows(cache, rows, start)
    return found


def _rotary(_: Attributes, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    found: Tensor = torch.ops.dflash.rotary(x, cos, sin)
    return found


def _dequantize(a: Attributes, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Symmetric: a step for all, for each index of an axis, or for each block of rows."""
    if "block_size" in a:
        scale = scale.repeat_interleave(a["block_size"], a["axis"])
    elif scale.dim() == 1:
        scale = scale.reshape([-1 if axis == a["axis"] % x.dim() else 1 for axis in range(x.dim())])
    return x.to(scale.dtype) * scale


def _quantize(_: Attributes, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    limits = torch.iinfo(zero.dtype)
    return (x.float() / scale.float()).round().clamp(limits.min, limits.max).to(zero.dtype)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Abs": lambda _, x: x.abs(),
    "Add": lambda _, x, y: x + y,
    "And": lambda _, x, y: x & y,
    "ArgMax": lambda a, x: x.argmax(a["axis"], keepdim=bool(a.get("keepdims", 1))),
    "Attention": _attention,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
    "Cos": lambda _, x: x.cos(),
    "CumSum": lambda _, x, axis: x.cumsum(int(axis)),
    "DequantizeLinear": _dequantize,
    "Div": _divide,
    "Equal": lambda _, x, y: x == y,
    "Exp": lambda _, x: x.exp(),
    "Expand": lambda _, x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Gather": _gather,
    "GatherElements": lambda a, x, index: x.gather(a["axis"], index),
    "GatherND": _gather_nd,
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "GreaterOrEqual": lambda _, x, y: x >= y,
    "LessOrEqual": lambda _, x, y: x <= y,
    "IsInf": lambda _, x: x.isinf(),
    "IsNaN": lambda _, x: x.isnan(),
    "Less": lambda _, x, y: x < y,
    "Greater": lambda _, x, y: x > y,
    "MatMul": lambda _, x, y: x @ y,
    "Min": lambda _, x, y: torch.minimum(x, y),
    "Max": lambda _, x, y: torch.maximum(x, y),
    "Mod": lambda _, x, y: torch.remainder(x, y),
    "Mul": lambda _, x, y: x * y,
    "Neg": lambda _, x: -x,
    "Not": lambda _, x: ~x,
    "Or": lambda _, x, y: x | y,
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "RMSNormalization": _norm,
    "Range": lambda _, first, end, step: torch.arange(int(first), int(end), int(step)),
    "Reciprocal": lambda _, x: 1 / x,
    "ReduceLogSumExp": lambda a, x, axes: _reduced(a, torch.logsumexp, x, axes),
    "ReduceMax": lambda a, x, axes: _reduced(a, torch.amax, x, axes),
    "ReduceMin": lambda a, x, axes: _reduced(a, torch.amin, x, axes),
    "ReduceSum": lambda a, x, axes: _reduced(a, torch.sum, x, axes),
    "Reshape": _reshape,
    "RotaryEmbedding": _rotary,
    "Shape": _shape,
    "Sigmoid": lambda _, x: x.sigmoid(),
    "Sin": lambda _, x: x.sin(),
    "Slice": _slice,
    "Split": lambda a, x, sizes: x.split(sizes.tolist(), a["axis"]),
    "Sqrt": lambda _, x: x.sqrt(),
    "Squeeze": _squeeze,
    "Sub": lambda _, x, y: x - y,
    "Tanh": lambda _, x: x.tanh(),
    "TensorScatter": _write,
    "Transpose": lambda a, x: x.permute(a["perm"]),
    "Unsqueeze": _unsqueeze,
    "Where": lambda _, c, x, y: torch.where(c, x, y),
}
