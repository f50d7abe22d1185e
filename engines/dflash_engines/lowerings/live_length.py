"""ONNX Runtime CPU: attend to the rows in use, so that a call costs what its live length asks, not max_len.

The canonical graph attends to all M cache rows under a mask. Rows from the batch's longest `length` on are
masked for every slot, and a masked row adds exactly zero: leaving it out gives the same bits.
"""

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

_KEY, _VALUE, _MASK = 1, 2, 3  # inputs of Attention
_ROWS_OF_CACHE, _COLUMNS_OF_MASK = 2, 3  # axes of K and V [B, heads, M, D], and of the mask [B, 1, S, M]
_PREFIX = "live_length"


def live_length(model: ModelProto) -> ModelProto:
    """A copy of `model` whose Attentions read K, V and mask sliced to the longest `length` of the batch."""
    lowered = ModelProto()
    lowered.CopyFrom(model)
    graph = lowered.graph
    slices: dict[str, NodeProto] = {}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "Attention":
            nodes.extend(_slice_inputs(node, slices))
        nodes.append(node)
    if not slices:
        return lowered
    del graph.node[:]
    graph.node.extend([_longest_length(), *nodes])
    constants = {"from": [0], "batch": [0], "rows": [_ROWS_OF_CACHE], "columns": [_COLUMNS_OF_MASK]}
    graph.initializer.extend(numpy_helper.from_array(np.array(v), f"{_PREFIX}_{n}") for n, v in constants.items())
    return lowered


def _longest_length() -> NodeProto:
    return helper.make_node(
        "ReduceMax", ["length", f"{_PREFIX}_batch"], [f"{_PREFIX}_to"], name=f"{_PREFIX}_to", keepdims=1
    )  # [1]


def _slice_inputs(attention: NodeProto, slices: dict[str, NodeProto]) -> list[NodeProto]:
    """Point `attention` at sliced inputs; returns the Slice nodes that no earlier one has brought in."""
    added = []
    for index, axis in ((_KEY, "rows"), (_VALUE, "rows"), (_MASK, "columns")):
        full = attention.input[index]
        if full not in slices:
            live = f"{full}_live"
            bounds = [f"{_PREFIX}_from", f"{_PREFIX}_to", f"{_PREFIX}_{axis}"]
            slices[full] = helper.make_node("Slice", [full, *bounds], [live], name=live)
            added.append(slices[full])
        attention.input[index] = slices[full].output[0]
    return added
