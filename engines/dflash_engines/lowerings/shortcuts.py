"""TensorRT: no conditions. A network that holds one can't be recorded in a CUDA graph, and compiles for many minutes.

`accept` skips a search that no row needs, by an If that then passes on what it has. Rows that don't need the search
take no notice of what it finds, so it may as well always run: a few passes over the logits, little on a GPU.
"""

from onnx import GraphProto, ModelProto, NodeProto, helper


def without_shortcuts(model: ModelProto) -> ModelProto:
    """A copy of `model` in which each If, one of whose branches only passes a value on, is its other branch."""
    lowered = ModelProto()
    lowered.CopyFrom(model)
    graph = lowered.graph
    nodes: list[NodeProto] = []
    for node in graph.node:
        branch = _branch_that_computes(node) if node.op_type == "If" else None
        if branch is None:
            nodes.append(node)
        else:
            nodes.extend(_inlined(branch, node, graph))
    del graph.node[:]
    graph.node.extend(nodes)
    return lowered


def _branch_that_computes(node: NodeProto) -> GraphProto | None:
    """None when both branches compute, or neither."""
    branches: list[GraphProto] = [helper.get_attribute_value(attribute) for attribute in node.attribute]
    computing = [b for b in branches if any(n.op_type != "Identity" for n in b.node)]
    return computing[0] if len(computing) == 1 else None


def _inlined(branch: GraphProto, node: NodeProto, graph: GraphProto) -> list[NodeProto]:
    """The branch's nodes under names of their own, giving what the If gave."""
    names = {value.name: f"{node.output[0]}/{value.name}" for value in branch.initializer}
    names |= {name: f"{node.output[0]}/{name}" for inner in branch.node for name in inner.output}
    names |= {given.name: wanted for given, wanted in zip(branch.output, node.output, strict=True)}
    for tensor in branch.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = names[tensor.name]
    nodes = []
    for inner in branch.node:
        copy = NodeProto()
        copy.CopyFrom(inner)
        copy.input[:] = [names.get(name, name) for name in inner.input]
        copy.output[:] = [names.get(name, name) for name in inner.output]
        copy.name = copy.output[0]
        nodes.append(copy)
    return nodes
