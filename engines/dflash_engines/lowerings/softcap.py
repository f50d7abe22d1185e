"""TensorRT: soft-capped attention as products, Tanh and Softmax. Its parser refuses the attribute `softcap`.

Scores and softmax are fp32, as in the fused kernels. Query heads that share keys become rows of one product.
"""

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

_PREFIX = "softcap"
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def written_out_softcap(model: ModelProto) -> ModelProto:
    """A copy of `model` in which attention with a soft-cap is written out. Caches are inputs of the graph."""
    lowered = ModelProto()
    lowered.CopyFrom(model)
    graph = lowered.graph
    caches = {value.name: value for value in graph.output}
    constants: dict[str, np.ndarray] = {}
    nodes: list[NodeProto] = []
    for node in graph.node:
        capped = node.op_type == "Attention" and float(_attributes(node).get("softcap", 0.0)) != 0.0
        nodes.extend(_written_out(node, caches[node.input[1]], constants) if capped else (node,))
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return lowered


def _attributes(node: NodeProto) -> Mapping[str, float]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _written_out(node: NodeProto, cache: object, constants: dict[str, np.ndarray]) -> list[NodeProto]:
    """softmax(cap · tanh(q kᵀ · scale / cap)) v, for q [B,Hq,S,D] and caches [B,Hkv,M,D]."""
    tensor = cache.type.tensor_type  # type: ignore[attr-defined]
    kv_heads, head_dim = tensor.shape.dim[1].dim_value, tensor.shape.dim[3].dim_value
    attributes = _attributes(node)
    cap = float(attributes["softcap"])
    scale = float(attributes.get("scale", head_dim**-0.5))
    query, key, value, mask = node.input
    steps = _Steps(node.output[0], constants)
    rows = steps.add("Reshape", query, steps.constant("rows", [0, kv_heads, -1, head_dim]))  # [B, Hkv, G·S, D]
    scores = steps.add("MatMul", rows, steps.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = steps.add("Mul", steps.add("Cast", scores, to=TensorProto.FLOAT), steps.number("scale", scale / cap))
    scores = steps.add("Mul", steps.add("Tanh", scores), steps.number("cap", cap))
    by_head = steps.add("Reshape", scores, steps.head_shape(query, key))  # [B, Hq, S, M]
    masked = steps.add("Where", mask, by_head, steps.number("masked", -np.inf))
    weights = steps.add("Cast", steps.add("Softmax", masked, axis=-1), to=tensor.elem_type)
    weights = steps.add("Reshape", weights, steps.add("Shape", scores))
    attended = steps.add("MatMul", weights, value)  # [B, Hkv, G·S, D]
    steps.add("Reshape", attended, steps.add("Shape", query), output=node.output[0])
    return steps.nodes


class _Steps:
    """Nodes in order, named after the attention they stand for."""

    def __init__(self, stem: str, constants: dict[str, np.ndarray]) -> None:
        self.stem, self.constants, self.nodes = stem, constants, list[NodeProto]()

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: int | list[int]) -> str:
        """The name of what the new node gives."""
        name = output or f"{self.stem}/{operator.lower()}_{len(self.nodes)}"
        node = helper.make_node(operator, inputs, [name], name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return name

    def constant(self, name: str, values: list[int]) -> str:
        """A vector of sizes, stored once."""
        full = f"{_PREFIX}/{name}_{'_'.join(map(str, values))}"
        self.constants[full] = np.array(values, np.int64)
        return full

    def number(self, name: str, value: float) -> str:
        """An fp32 number, stored once."""
        full = f"{_PREFIX}/{name}_{value!r}"
        self.constants[full] = np.array(value, np.float32)
        return full

    def head_shape(self, query: str, key: str) -> str:
        """[B, Hq, S, M]."""
        leading = self.add("Shape", query, start=0, end=3)
        columns = self.add("Shape", key, start=2, end=3)
        return self.add("Concat", leading, columns, axis=0)
