"""TensorRT: query heads that share keys become rows of one head, and the scale goes to the queries. The same numbers.

Given fewer key heads than query heads, TensorRT-RTX copies keys and values for each query head, all M rows of them,
before every attention. Given a scale, its parser multiplies half of it into the keys, all M rows of them. Both are in
the compiled engines, as kernels of their own. After this neither is. (The parser still multiplies by 1;
`tensorrt.network.attend_directly` takes that out of the parsed network.)
"""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

_NUMPY: dict[int, type[np.generic]] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}
Constants = dict[str, NDArray[np.generic]]


def grouped_queries(model: ModelProto) -> ModelProto:
    """A copy of `model` whose Attentions have scale 1 and as many query heads as key heads.

    Queries [B,Hq,S,D] become [B,Hkv,G·S,D] with G = Hq / Hkv, and a mask [B,1,S,M] is repeated G times: as numbers to
    add, since the compiler gives up on a boolean one whose S is not fixed ("more than one op named …iota").
    """
    lowered = ModelProto()
    lowered.CopyFrom(model)
    graph = lowered.graph
    caches = {value.name: value.type.tensor_type for value in graph.output}
    heads = query_heads(model)
    constants: Constants = {}
    masks: dict[tuple[str, int], str] = {}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "Attention":
            nodes.extend(_grouped(node, heads[node.name], caches[node.input[1]], constants, masks))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return lowered


def query_heads(model: ModelProto) -> dict[str, int]:
    """Query heads of each Attention, by node name: the tracer writes down the shape of its output [B,Hq,S,D]."""
    shapes = {value.name: value.type.tensor_type.shape for value in model.graph.value_info}
    attentions = (node for node in model.graph.node if node.op_type == "Attention")
    return {node.name: shapes[node.output[0]].dim[1].dim_value for node in attentions}


def _grouped(
    node: NodeProto, heads: int, cache: TypeProto.Tensor, constants: Constants, masks: dict[tuple[str, int], str]
) -> list[NodeProto]:
    """The nodes in place of `node`."""
    kv_heads, head_dim = cache.shape.dim[1].dim_value, cache.shape.dim[3].dim_value
    query, key, value, mask = node.input
    (result,) = node.output
    given = [attribute.f for attribute in node.attribute if attribute.name == "scale"]
    scale = given[0] if given else head_dim**-0.5
    factor = f"query_scale/{scale!r}/{TensorProto.DataType.Name(cache.elem_type)}"
    constants[factor] = np.array(scale, _NUMPY[cache.elem_type])
    scaled, grouped, attended = f"{result}/scaled", f"{result}/query", f"{result}/grouped"
    nodes = [helper.make_node("Mul", [query, factor], [scaled], name=scaled)]
    group = heads // kv_heads
    if (mask, group) not in masks:
        masks[mask, group] = f"{mask}/{group}"
        nodes.extend(_repeated(mask, group, masks[mask, group], _NUMPY[cache.elem_type], constants))
    inputs = [grouped, key, value, masks[mask, group]]
    return [
        *nodes,
        _reshape(scaled, grouped, [0, kv_heads, -1, head_dim], constants),
        helper.make_node("Attention", inputs, [attended], name=node.name, scale=1.0),
        _reshape(attended, result, [0, heads, -1, head_dim], constants),
    ]


def _repeated(
    mask: str, group: int, result: str, dtype: type[np.generic], constants: Constants
) -> tuple[NodeProto, NodeProto]:
    """[B,1,G·S,M]: 0 where the mask is true, else minus infinity."""
    constants["mask/seen"], constants["mask/hidden"] = np.array(0, dtype), np.array(-np.inf, dtype)
    added = f"{result}/added"
    return (
        helper.make_node("Where", [mask, "mask/seen", "mask/hidden"], [added], name=added),
        helper.make_node("Concat", [added] * group, [result], name=f"{result}/repeat", axis=2),
    )


def _reshape(source: str, result: str, shape: list[int], constants: Constants) -> NodeProto:
    name = f"heads/{'x'.join(map(str, shape))}"
    constants[name] = np.array(shape, np.int64)
    return helper.make_node("Reshape", [source, name], [result], name=f"{result}/reshape")
