"""Attention by length gives what attention by mask gave, in ONNX Runtime on the CPU; other masks stay."""

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from dflash_engines.lowerings.length_for_mask import length_for_mask

HEADS, KV_HEADS, SIZE = 4, 2, 8
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Rule = Callable[[], list[tuple[str, list[str], str]]]


def causal() -> list[tuple[str, list[str], str]]:
    """Columns up to each query's own row."""
    return [("Add", ["column_start", "rows"], "last"), ("LessOrEqual", ["columns", "last"], "mask")]


def all_in_use() -> list[tuple[str, list[str], str]]:
    return [("Less", ["columns", "column_length"], "short"), ("Expand", ["short", "mask_shape"], "mask")]


def window() -> list[tuple[str, list[str], str]]:
    """Causal, and at most four rows back."""
    return [
        ("Add", ["column_start", "rows"], "last"), ("LessOrEqual", ["columns", "last"], "seen"),
        ("Sub", ["last", "columns"], "distance"), ("Less", ["distance", "four"], "near"),
        ("And", ["seen", "near"], "mask"),
    ]  # fmt: skip


def model(rule: Rule) -> ModelProto:
    """One Attention of `q` over `key` and `value`, with a mask made from start and length."""
    steps: list[tuple[str, list[str], str]] = [
        ("Shape", ["tokens"], "tokens_shape"), ("Gather", ["tokens_shape", "one"], "count"),
        ("Range", ["zero", "count", "one"], "row"), ("Unsqueeze", ["row", "axes_013"], "rows"),
        ("Shape", ["key"], "key_shape"), ("Gather", ["key_shape", "two"], "size"),
        ("Range", ["zero", "size", "one"], "column"), ("Unsqueeze", ["column", "axes_012"], "columns"),
        ("Unsqueeze", ["start", "axes_123"], "column_start"), ("Unsqueeze", ["length", "axes_123"], "column_length"),
        ("Gather", ["tokens_shape", "zero"], "batch"), ("Unsqueeze", ["batch", "axis_0"], "b"),
        ("Unsqueeze", ["count", "axis_0"], "s"), ("Unsqueeze", ["size", "axis_0"], "m"),
        *rule(), ("Attention", ["q", "key", "value", "mask"], "out"),
    ]  # fmt: skip
    nodes = [helper.make_node(kind, inputs, [out]) for kind, inputs, out in steps]
    nodes.insert(
        len(nodes) - 1 - len(rule()), helper.make_node("Concat", ["b", "ones", "s", "m"], ["mask_shape"], axis=0)
    )
    constants = {"zero": 0, "one": 1, "two": 2, "four": 4, "axis_0": [0], "ones": [1], "axes_013": [0, 1, 3],
                 "axes_012": [0, 1, 2], "axes_123": [1, 2, 3]}  # fmt: skip
    cache: list[str | int | None] = ["B", KV_HEADS, "M", SIZE]
    shapes: dict[str, tuple[int, list[str | int | None]]] = {
        "tokens": (INT, ["B", "S"]), "start": (INT, ["B"]), "length": (INT, ["B"]),
        "q": (FLOAT, ["B", HEADS, "S", SIZE]), "key": (FLOAT, cache), "value": (FLOAT, cache),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "one", [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in shapes.items()],
        [helper.make_tensor_value_info("out", FLOAT, ["B", HEADS, "S", SIZE])],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def run(made: ModelProto, rows: int, starts: list[int]) -> np.ndarray:
    generator = np.random.default_rng(rows)
    start, batch = np.array(starts), len(starts)
    feeds = {
        "tokens": np.zeros((batch, rows), np.int64), "start": start, "length": start + rows,
        "q": generator.normal(size=(batch, HEADS, rows, SIZE)).astype(np.float32),
        **{name: generator.normal(size=(batch, KV_HEADS, 24, SIZE)).astype(np.float32) for name in ("key", "value")},
    }  # fmt: skip
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    return np.asarray(session.run(None, {name: value for name, value in feeds.items() if name in wanted})[0])


@pytest.mark.parametrize(("rule", "is_causal"), [(causal, 1), (all_in_use, 0)])
def test_the_numbers_are_the_same_without_the_mask(rule: Rule, is_causal: int) -> None:
    before = model(rule)
    after = length_for_mask(before)
    attention = next(node for node in after.graph.node if node.op_type == "Attention")
    assert (attention.input[3], attention.attribute[-1].i) == ("", is_causal)
    for rows, starts in ((1, [0, 3]), (2, [0, 0]), (5, [7, 19]), (8, [16, 1])):
        np.testing.assert_allclose(run(after, rows, starts), run(before, rows, starts), atol=2e-6)


def test_a_window_keeps_its_mask() -> None:
    """Replaced, it would attend to everything before it."""
    after = length_for_mask(model(window))
    assert next(node for node in after.graph.node if node.op_type == "Attention").input[3] == "mask"


def test_a_planted_wrong_lowering_shows() -> None:
    before = model(causal)
    after = length_for_mask(before)
    attention = next(node for node in after.graph.node if node.op_type == "Attention")
    attention.attribute[-1].i = 0
    assert np.abs(run(after, 5, [7, 19]) - run(before, 5, [7, 19])).max() > 0.1
