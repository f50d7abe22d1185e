"""fp16 and bf16: products, attention and caches in half precision, everything else in fp32.

Products and caches are what a call reads from memory; all that lies between them (norms, the residual stream,
RoPE angles, activations, soft-caps, logits) is cheap and stays in fp32. So only a product's inputs and outputs,
and queries, keys and values, can leave fp16's range. Attention's softmax is in fp32 in all fused kernels; asking
for it (`softmax_precision`) is refused by TensorRT's parser.
"""

from collections.abc import Collection

import ml_dtypes
import numpy as np
import onnx_ir as ir

_HALF = {"Attention", "TensorScatter"}
# Operators that only move numbers: they take on the type of what they move.
_MOVES = {"Transpose", "Reshape", "Split", "Slice", "Squeeze", "Unsqueeze", "Expand", "Identity", "GatherElements"}
_NUMPY = {ir.DataType.FLOAT16: np.dtype(np.float16), ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
FC = "drafter.fc"  # reads the taps, which are large


def fp16(model: ir.Model, *, keep: Collection[str] = (), tap_shift: int = 0) -> ir.Model:
    """A copy of `model` in fp16. Products named in `keep` stay fp32; taps are divided by 2^tap_shift before `fc`."""
    lowered = model.clone()
    scale_taps(lowered.graph, tap_shift)
    _Halving(lowered.graph, ir.DataType.FLOAT16, keep).run()
    return lowered


def bf16(model: ir.Model) -> ir.Model:
    """A copy of `model` in bf16, whose range is fp32's."""
    lowered = model.clone()
    _Halving(lowered.graph, ir.DataType.BFLOAT16, ()).run()
    return lowered


def scale_taps(graph: ir.Graph, shift: int) -> None:
    """Divide the input of `fc` by 2^shift, and the eps of the norm behind it by 2^2·shift: the same numbers exactly.

    A program without `fc` (draft) is left as it is.
    """
    fc = next((node for node in graph if node.name == FC), None)
    if fc is None or shift == 0:
        return
    (norm,) = (use.node for use in fc.outputs[0].uses())
    assert norm.op_type == "RMSNormalization", f"{FC} is read by {norm.op_type}"
    factor = constant(graph, "tap_scale", np.array(2.0**-shift, np.float32))
    scaled = ir.node("Mul", [fc.inputs[0], factor], name="scale_taps")
    _typed_like(scaled.outputs[0], fc.inputs[0], "scaled_taps")
    graph.insert_before(fc, scaled)
    fc.replace_input_with(0, scaled.outputs[0])
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", norm.attributes["epsilon"].as_float() * 4.0**-shift)


def constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """A new initialiser."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _typed_like(value: ir.Value, other: ir.Value | None, name: str) -> None:
    assert other is not None
    value.name, value.type, value.shape = name, other.type, other.shape


class _Halving:
    """One pass over a graph in order: each node gets its inputs in the type it computes in."""

    def __init__(self, graph: ir.Graph, half: ir.DataType, keep: Collection[str]) -> None:
        self.graph, self.half, self.keep = graph, half, keep
        self.halved: set[ir.Value] = set()
        self.casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        """Rewrite the graph in place."""
        nodes = list(self.graph)
        for node in nodes:
            if self._holds_weight(node):
                self._halve_weight(node)
        for node in nodes:
            if self._in_half(node):
                self._compute_in_half(node)
            else:
                self._compute_in_fp32(node)
        self._border()

    def _in_half(self, node: ir.Node) -> bool:
        moves = node.op_type in _MOVES and node.inputs[0] in self.halved
        return node.op_type in _HALF or moves or self._holds_weight(node)

    def _holds_weight(self, node: ir.Node) -> bool:
        """Products, and the embedding."""
        if node.op_type == "MatMul":
            return node.name not in self.keep and weight_of(node.inputs[1]) is not None
        return node.op_type == "Gather" and weight_of(node.inputs[0]) is not None

    def _halve_weight(self, node: ir.Node) -> None:
        value = weight_of(node.inputs[0 if node.op_type == "Gather" else 1])
        if value is None or value.const_value is None or value in self.halved:
            return
        value.const_value = ir.tensor(value.const_value.numpy().astype(_NUMPY[self.half]), name=value.name)
        value.type = ir.TensorType(self.half)
        self.halved.add(value)

    def _compute_in_half(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and is_float(value):
                node.replace_input_with(index, self._as(value, self.half))
        for output in node.outputs:
            if is_float(output):
                output.type = ir.TensorType(self.half)
                self.halved.add(output)

    def _compute_in_fp32(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value in self.halved:
                node.replace_input_with(index, self._as(value, ir.DataType.FLOAT))

    def _as(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`value` in another type: a cache changes its own, anything else is cast once."""
        if (value in self.halved) == (dtype == self.half):
            return value
        if dtype == self.half and value.is_graph_input():
            value.type = ir.TensorType(self.half)
            self.halved.add(value)
            return value
        if (value, dtype) not in self.casts:
            self.casts[value, dtype] = self._cast(value, dtype)
        return self.casts[value, dtype]

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        node = ir.node("Cast", [value], {"to": dtype}, name=f"{value.name}/{dtype.name.lower()}")
        cast = node.outputs[0]
        cast.name, cast.type, cast.shape = node.name, ir.TensorType(dtype), value.shape
        producer = value.producer()
        if producer is None:
            self.graph.insert_before(self.graph[0], node)
        else:
            self.graph.insert_after(producer, node)
        if dtype == self.half:
            self.halved.add(cast)
        return cast

    def _border(self) -> None:
        """Outputs other than caches keep their type and name."""
        for index, output in enumerate(self.graph.outputs):
            producer = output.producer()
            if output in self.halved and producer is not None and producer.op_type != "TensorScatter":
                name, output.name = output.name, f"{output.name}/half"
                wide = self._cast(output, ir.DataType.FLOAT)
                wide.name, wide.doc_string = name, output.doc_string
                self.graph.outputs[index] = wide


def is_float(value: ir.Value) -> bool:
    """Whether the value holds floating-point numbers; the tracer gives every value a type but products'."""
    return value.dtype is None or value.dtype.is_floating_point()


def weight_of(value: ir.Value | None) -> ir.Value | None:
    """The constant matrix that `value` is, or is the transpose of; None for anything else."""
    if value is None:
        return None
    turned = value.producer()
    source = turned.inputs[0] if turned is not None and turned.op_type == "Transpose" else value
    if source is None or not source.is_initializer() or source.const_value is None:
        return None
    matrix = len(source.const_value.shape) == 2 and source.const_value.dtype.is_floating_point()
    return source if matrix else None
