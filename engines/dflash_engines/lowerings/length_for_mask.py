"""ONNX Runtime on CUDA: attention told by a length, and whether it is causal, where the traced graph has a mask.

Its fused kernels take no mask. What a mask means isn't guessed from the graph's form: the part of the graph that makes
it is run for a few positions, and only a mask that is exactly one of the two rules is replaced. Others stay.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

_MASK, _NONPAD_LENGTH, _INPUTS = 3, 6, 7  # inputs of Attention
_SIZES = {"B": 2, "S": 3, "K": 3, "R": 3, "M": 24}
_STARTS = ((0, 5), (7, 2), (20, 1))
_LENGTH = "length_for_mask"
_TYPES = {TensorProto.INT64: np.int64, TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def length_for_mask(model: ModelProto) -> ModelProto:
    """A copy of `model` whose Attentions have no mask where a length says the same."""
    lowered = ModelProto()
    lowered.CopyFrom(model)
    graph = lowered.graph
    masks = {node.input[_MASK] for node in graph.node if _is_masked(node)}
    causal = {mask: rule for mask in masks if (rule := _rule(model, mask)) is not None}
    replaced = [node for node in graph.node if _is_masked(node) and node.input[_MASK] in causal]
    for node in replaced:
        _replace(node, causal=causal[node.input[_MASK]])
    if replaced:
        at = min(list(graph.node).index(node) for node in replaced)
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes[:at], *_length_nodes(), *nodes[at:]])
        graph.initializer.append(numpy_helper.from_array(np.array(1), f"{_LENGTH}_axis"))
    return lowered


def _is_masked(node: NodeProto) -> bool:
    return node.op_type == "Attention" and len(node.input) > _MASK and bool(node.input[_MASK])


def _replace(node: NodeProto, *, causal: bool) -> None:
    inputs = [*node.input, *[""] * (_INPUTS - len(node.input))]
    inputs[_MASK], inputs[_NONPAD_LENGTH] = "", _LENGTH
    del node.input[:]
    node.input.extend(inputs)
    node.attribute.append(helper.make_attribute("is_causal", int(causal)))


def _length_nodes() -> list[NodeProto]:
    """The rows in use, [B]: an idle slot's are as many as its queries, so that each of them sees one."""
    return [
        helper.make_node("Shape", ["tokens"], [f"{_LENGTH}_shape"]),
        helper.make_node("Gather", [f"{_LENGTH}_shape", f"{_LENGTH}_axis"], [f"{_LENGTH}_rows"]),
        helper.make_node("Max", ["length", f"{_LENGTH}_rows"], [_LENGTH]),
    ]


def _rule(model: ModelProto, mask: str) -> bool | None:
    """Whether the mask is the causal one (True), that of all rows in use (False), or another (None)."""
    made = _maker(model, mask)
    if made is None:
        return None
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found = {True, False}
    for starts in _STARTS:
        value = session.run([mask], _feeds(made, np.array(starts)))[0]
        found &= {causal for causal in found if _is_rule(value, np.array(starts), causal)}
    return next(iter(found)) if len(found) == 1 else None


def _is_rule(mask: NDArray[Any], starts: NDArray[np.int64], causal: bool) -> bool:
    rows, columns = np.arange(_SIZES["S"]), np.arange(_SIZES["M"])
    last = starts[:, None] + rows if causal else np.repeat(starts[:, None] + _SIZES["S"] - 1, len(rows), 1)
    wanted = columns <= last[:, None, :, None]
    return mask.dtype == np.bool_ and bool(np.array_equal(np.broadcast_to(mask, wanted.shape), wanted))


def _maker(model: ModelProto, mask: str) -> ModelProto | None:
    """The part of the graph that makes a mask, as a model; None when it reads weights that aren't in the graph."""
    by_output = {name: node for node in model.graph.node for name in node.output}
    wanted, needed, nodes = [mask], set(), []
    while wanted:
        name = wanted.pop()
        if name in needed or not name:
            continue
        needed.add(name)
        if name in by_output:
            nodes.append(by_output[name])
            wanted.extend(by_output[name].input)
    constants = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    if any(uses_external_data(tensor) for tensor in constants):
        return None
    kept = [node for node in model.graph.node if any(node is other for other in nodes)]
    inputs = [value for value in model.graph.input if value.name in needed]
    output = helper.make_tensor_value_info(mask, TensorProto.BOOL, None)
    graph = helper.make_graph(kept, "mask", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _feeds(made: ModelProto, starts: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    known = {"start": starts, "length": starts + _SIZES["S"]}
    return {value.name: known.get(value.name, _zeros(value)) for value in made.graph.input}


def _zeros(value: Any) -> NDArray[Any]:
    dims: Iterable[Any] = value.type.tensor_type.shape.dim
    shape = [_SIZES[d.dim_param] if d.dim_param else d.dim_value for d in dims]
    return np.zeros(shape, _TYPES.get(value.type.tensor_type.elem_type, np.float32))
