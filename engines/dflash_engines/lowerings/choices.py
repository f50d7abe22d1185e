"""TensorRT: a choice between a number and its next step as the number and a chosen step.

Where(c, x + s, x) is x + Where(c, s, 0), and Where(c, x * s, x) is x * Where(c, s, 1): the same bits, for x of ordinary
size. A chain of the first kind, as a bisection makes, takes TensorRT's compiler twice as long with each further link
(16 of them 5 s, 29 more than 3 minutes); of the second kind, 29 take 2 s.
"""

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

_NEUTRAL = {"Add": 0.0, "Mul": 1.0}


def choices_as_steps(model: ModelProto) -> ModelProto:
    """A copy of `model` with every such choice between fp32 numbers turned."""
    lowered = ModelProto()
    lowered.CopyFrom(model)
    graph, floats = lowered.graph, _floats(model)
    producers = {name: node for node in graph.node for name in node.output}
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.extend((node.output[0] in floats and _turned(node, producers)) or (node,))
    del graph.node[:]
    graph.node.extend(nodes)
    _add_neutral_numbers(graph)
    return lowered


def _turned(node: NodeProto, producers: dict[str, NodeProto]) -> tuple[NodeProto, NodeProto] | None:
    """The two nodes that stand for `node`, if it is such a choice."""
    if node.op_type != "Where":
        return None
    condition, then, otherwise = node.input
    moved = producers.get(then)
    if moved is None or moved.op_type not in _NEUTRAL or otherwise not in moved.input:
        return None
    step = next((name for name in moved.input if name != otherwise), otherwise)
    chosen = f"{node.output[0]}/step"
    choice = helper.make_node("Where", [condition, step, _name(moved.op_type)], [chosen], name=chosen)
    return choice, helper.make_node(moved.op_type, [otherwise, chosen], node.output, name=node.name)


def _name(operator: str) -> str:
    return f"choices/{operator}"


def _add_neutral_numbers(graph: GraphProto) -> None:
    used = {name for node in graph.node for name in node.input}
    for operator, neutral in _NEUTRAL.items():
        if _name(operator) in used:
            graph.initializer.append(numpy_helper.from_array(np.array(neutral, np.float32), _name(operator)))


def _floats(model: ModelProto) -> set[str]:
    """Names of the values that are known to be fp32."""
    graph = shape_inference.infer_shapes(model).graph
    known = (*graph.value_info, *graph.output)
    return {value.name for value in known if value.type.tensor_type.elem_type == TensorProto.FLOAT}
