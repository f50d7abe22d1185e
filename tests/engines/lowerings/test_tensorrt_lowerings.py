"""What TensorRT needs of a program changes none of its numbers: each lowering before and after, in ONNX Runtime."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from dflash_engines.lowerings.choices import choices_as_steps
from dflash_engines.lowerings.grouped_queries import grouped_queries
from dflash_engines.lowerings.shortcuts import without_shortcuts
from dflash_engines.lowerings.softcap import written_out_softcap
from dflash_engines.lowerings.static_cache import static_cache

HEADS, KV_HEADS, HEAD_DIM, ROWS, SLOTS, QUERIES = 6, 2, 8, 24, 2, 5
Arrays = Mapping[str, NDArray[Any]]


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    constants: Arrays | None = None,
    known: Mapping[str, Any] | None = None,
) -> ModelProto:
    """Inputs, outputs and known values: name to (type, shape)."""

    def values(of: Mapping[str, Any]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, *declared) for name, declared in of.items()]

    tensors = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), tensors, value_info=values(known or {}))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.checker.check_model(made)
    return made


def run(program: ModelProto, inputs: Arrays) -> list[NDArray[Any]]:
    session = ort.InferenceSession(program.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(None, dict(inputs))
    return found


def attention_model(scale: float | None, softcap: float) -> ModelProto:
    """One layer: new rows are written to caches, and attended to under a mask."""
    nodes = [
        helper.make_node("TensorScatter", ["key", "new_k", "start"], ["new_key"], axis=2, mode="linear"),
        helper.make_node("TensorScatter", ["value", "new_v", "start"], ["new_value"], axis=2, mode="linear"),
        helper.make_node("Attention", ["query", "new_key", "new_value", "mask"], ["out"], name="attention",
                         softcap=softcap),
    ]  # fmt: skip
    if scale is not None:
        nodes[-1].attribute.append(helper.make_attribute("scale", scale))
    real, cache = TensorProto.FLOAT, (TensorProto.FLOAT, ["B", KV_HEADS, "M", HEAD_DIM])
    rows, queries = (real, ["B", KV_HEADS, "S", HEAD_DIM]), (real, ["B", HEADS, "S", HEAD_DIM])
    inputs = {"query": queries, "new_k": rows, "new_v": rows, "start": (TensorProto.INT64, ["B"]),
              "mask": (TensorProto.BOOL, ["B", 1, "S", "M"]), "key": cache, "value": cache}  # fmt: skip
    nodes.append(helper.make_node("Identity", ["out"], ["result"]))  # as a tracer, which knows what lies inside
    outputs = {"result": queries, "new_key": cache, "new_value": cache}
    return model(nodes, inputs, outputs, known={"out": queries})


def attention_inputs() -> dict[str, NDArray[Any]]:
    draw = np.random.default_rng(1).standard_normal
    start = np.array([7, ROWS - QUERIES])
    last = start[:, None] + np.arange(QUERIES)
    last[1] = 0  # an idle slot sees one row
    rows = {name: draw((SLOTS, KV_HEADS, QUERIES, HEAD_DIM)).astype(np.float32) for name in ("new_k", "new_v")}
    caches = {name: draw((SLOTS, KV_HEADS, ROWS, HEAD_DIM)).astype(np.float32) for name in ("key", "value")}
    return {
        "query": 3 * draw((SLOTS, HEADS, QUERIES, HEAD_DIM)).astype(np.float32), "start": start, **rows, **caches,
        "mask": np.arange(ROWS) <= last[:, None, :, None],
    }  # fmt: skip


def largest_difference(before: ModelProto, after: ModelProto) -> float:
    onnx.checker.check_model(after, full_check=True)
    inputs = attention_inputs()
    return max(float(np.abs(a - b).max()) for a, b in zip(run(before, inputs), run(after, inputs), strict=True))


@pytest.mark.parametrize("scale", [None, 0.11])
def test_queries_of_one_key_head_become_its_rows(scale: float | None) -> None:
    before = attention_model(scale, softcap=0.0)
    after = grouped_queries(before)
    assert largest_difference(before, after) < 2e-6
    (attention,) = (node for node in after.graph.node if node.op_type == "Attention")
    assert next(a.f for a in attention.attribute if a.name == "scale") == 1.0
    assert {"new_key", "new_value"} <= set(attention.input)


@pytest.mark.parametrize(("scale", "cap"), [(None, 2.0), (0.11, 30.0)])
def test_soft_caps_are_written_out(scale: float | None, cap: float) -> None:
    before = attention_model(scale, softcap=cap)
    after = written_out_softcap(before)
    assert largest_difference(before, after) < 2e-6
    assert not any(node.op_type == "Attention" for node in after.graph.node)


def test_attention_without_a_soft_cap_is_left_alone() -> None:
    before = attention_model(None, softcap=0.0)
    assert written_out_softcap(before) == before


def test_a_cap_that_is_left_out_shows() -> None:
    """So that the tests above can fail."""
    assert largest_difference(attention_model(None, softcap=2.0), attention_model(None, softcap=0.0)) > 1e-2


def test_caches_get_their_rows() -> None:
    before = attention_model(None, softcap=0.0)
    after = static_cache(before, ROWS)
    assert largest_difference(before, after) == 0
    dims = [v.type.tensor_type.shape.dim for v in (*after.graph.input, *after.graph.output)]
    assert sum(d.dim_value == ROWS for dim in dims for d in dim) == 5
    assert not any(d.dim_param == "M" for dim in dims for d in dim)


def bisection(steps: int) -> ModelProto:
    """The largest multiple of 2^-steps that at least two of the numbers reach."""
    constants = {"zero": np.zeros((), np.float32), "two": np.array(2, np.float32), "last": np.array([-1])}
    nodes = [helper.make_node("Mul", ["factor", "zero"], ["found0"])]
    for i in range(1, steps + 1):
        constants[f"step{i}"] = np.array(2.0**-i, np.float32)
        nodes += [
            helper.make_node("Add", [f"found{i - 1}", f"step{i}"], [f"candidate{i}"]),
            helper.make_node("GreaterOrEqual", ["numbers", f"candidate{i}"], [f"reach{i}"]),
            helper.make_node("Cast", [f"reach{i}"], [f"number{i}"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", [f"number{i}", "last"], [f"count{i}"], keepdims=1),
            helper.make_node("GreaterOrEqual", [f"count{i}", "two"], [f"enough{i}"]),
            helper.make_node("Where", [f"enough{i}", f"candidate{i}", f"found{i - 1}"], [f"found{i}"]),
        ]
    constants["big"] = np.array(3.5, np.float32)
    nodes += [  # a choice of a product
        helper.make_node("Mul", ["big", f"found{steps}"], ["larger"]),
        helper.make_node("Where", [f"enough{steps}", "larger", f"found{steps}"], ["found"]),
    ]
    real = TensorProto.FLOAT
    return model(nodes, {"numbers": (real, [3, 50]), "factor": (real, [3, 1])}, {"found": (real, [3, 1])}, constants)


def test_choices_become_steps_bit_for_bit() -> None:
    before = bisection(20)
    after = choices_as_steps(before)
    assert sum(node.name.endswith("/step") for node in after.graph.node) == 21
    inputs = {
        "numbers": np.random.default_rng(2).random((3, 50)).astype(np.float32),
        "factor": np.ones((3, 1), np.float32),
    }
    np.testing.assert_array_equal(run(before, inputs)[0], run(after, inputs)[0])


def test_choices_between_whole_numbers_are_left_alone() -> None:
    whole, truth = TensorProto.INT64, TensorProto.BOOL
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Where", ["c", "sum", "x"], ["out"])]
    before = model(nodes, {"x": (whole, [4]), "y": (whole, [4]), "c": (truth, [4])}, {"out": (whole, [4])})
    assert choices_as_steps(before) == before


def shortcut() -> ModelProto:
    """`guess`, if it is known to be right, else what a search gives; rows that know take no notice of the search."""
    real = TensorProto.FLOAT
    passing = helper.make_graph([helper.make_node("Identity", ["guess"], ["a"])], "passing", [],
                                [helper.make_tensor_value_info("a", real, [4])])  # fmt: skip
    searching = helper.make_graph(
        [helper.make_node("Mul", ["numbers", "inside"], ["x"]), helper.make_node("Add", ["x", "x"], ["b"])],
        "searching",
        [],
        [helper.make_tensor_value_info("b", real, [4])],
        [numpy_helper.from_array(np.array(2, np.float32), "inside")],
    )
    nodes = [
        helper.make_node("Cast", ["known"], ["whole"], to=TensorProto.INT64),
        helper.make_node("ReduceMin", ["whole"], ["all"], keepdims=0),
        helper.make_node("Cast", ["all"], ["skip"], to=TensorProto.BOOL),
        helper.make_node("If", ["skip"], ["searched"], then_branch=passing, else_branch=searching),
        helper.make_node("Where", ["known", "guess", "searched"], ["out"]),
    ]
    inputs = {"known": (TensorProto.BOOL, [4]), "guess": (real, [4]), "numbers": (real, [4])}
    return model(nodes, inputs, {"out": (real, [4])})


@pytest.mark.parametrize("known", [[True] * 4, [False] * 4, [True, False, True, True]])
def test_a_search_that_always_runs_gives_the_same(known: list[bool]) -> None:
    before = shortcut()
    after = without_shortcuts(before)
    assert not any(node.op_type == "If" for node in after.graph.node)
    onnx.checker.check_model(after, full_check=True)
    numbers = np.arange(4, dtype=np.float32)
    inputs = {"known": np.array(known), "guess": -numbers, "numbers": numbers}
    np.testing.assert_array_equal(run(before, inputs)[0], run(after, inputs)[0])
