"""Rewrites of the traced graph: readable names, fewer and wider products."""

import ast
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

_SCOPES = "pkg.torch.onnx.name_scopes"


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initialiser, or None for anything else."""
    return value.const_value if value is not None and value.is_initializer() else None


def products(graph: ir.Graph) -> list[ir.Node]:
    """MatMul nodes whose right side is a constant matrix."""
    found = []
    for node in graph:
        weight = constant(node.inputs[1]) if node.op_type == "MatMul" else None
        if weight is not None and len(weight.shape) == 2:
            found.append(node)
    return found


def name_weights(graph: ir.Graph) -> None:
    """Name each product's weight after the torch module it came from; the exporter left `val_17`."""
    for node in products(graph):
        weight, module = node.inputs[1], _module(node)
        if weight is not None and module and f"{module}.weight_t" not in graph.initializers:
            weight.name = f"{module}.weight_t"
            node.name = module
    for node in _turned_products(graph):
        node.name = _module(node) or "head"  # the drafter's is not a module


def _turned_products(graph: ir.Graph) -> list[ir.Node]:
    """MatMul nodes whose right side is a constant that is transposed first: the heads."""
    turned = {node.outputs[0] for node in graph if node.op_type == "Transpose" and constant(node.inputs[0]) is not None}
    return [node for node in graph if node.op_type == "MatMul" and node.inputs[1] in turned]


def _module(node: ir.Node) -> str:
    scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    return next((scope for scope in reversed(scopes[:-1]) if scope), "")


def merge_products(graph: ir.Graph) -> int:
    """One product for all that read the same input: q/k/v, gate/up, the injection's. Returns how many were merged."""
    readers: dict[ir.Value, list[ir.Node]] = defaultdict(list)
    for node in products(graph):
        if node.inputs[0] is not None:
            readers[node.inputs[0]].append(node)
    groups = [nodes for nodes in readers.values() if len(nodes) > 1]
    for nodes in groups:
        _merge(graph, nodes)
    return sum(len(nodes) for nodes in groups)


def _merge(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    """Replace products of one input by a product with their weights side by side, and a Split."""
    matrices = [_matrix(node) for node in nodes]
    name = _joined_name([node.name or "" for node in nodes])
    wide = _initializer(graph, f"{name}.weight_t", np.concatenate(matrices, axis=1))
    sizes = _initializer(graph, f"{name}.split", np.array([m.shape[1] for m in matrices], np.int64))
    product = ir.node("MatMul", [nodes[0].inputs[0], wide], name=name)
    split = ir.node("Split", [product.outputs[0], sizes], {"axis": -1}, num_outputs=len(nodes), name=f"{name}/split")
    product.outputs[0].name = f"{name}/out"
    graph.insert_before(nodes[0], [product, split])
    old = [node.outputs[0] for node in nodes]
    for before, after in zip(old, split.outputs, strict=True):
        after.name, after.type, after.shape = f"{before.name}_part", before.type, before.shape
    ir.convenience.replace_all_uses_with(old, list(split.outputs))
    weights = [node.inputs[1] for node in nodes]
    graph.remove(nodes, safe=True)
    _forget(graph, [w for w in weights if w is not None])


def _matrix(node: ir.Node) -> np.ndarray:
    tensor = constant(node.inputs[1])
    assert tensor is not None  # `products` chose it so
    return tensor.numpy()


def _initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _forget(graph: ir.Graph, weights: Iterable[ir.Value]) -> None:
    for weight in weights:
        if not weight.uses() and weight.name is not None:
            graph.initializers.pop(weight.name, None)


def _joined_name(modules: list[str]) -> str:
    """layers.0.self_attn.q_proj, ….k_proj → layers.0.self_attn.q_proj+k_proj."""
    parts = [module.split(".") for module in modules]
    same = 0
    while len({tuple(p[: same + 1]) for p in parts}) == 1 and same < min(map(len, parts)) - 1:
        same += 1
    return ".".join([*parts[0][:same], "+".join(".".join(p[same:]) for p in parts)])


def strip(model: ir.Model) -> None:
    """Drop the tracer's notes (stack traces of the exporting machine); names and the border's meanings stay."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in model.graph.initializers.values():
        value.metadata_props.clear()
