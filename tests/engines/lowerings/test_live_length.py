from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from dflash_engines.lowerings.live_length import live_length

HEADS, KV_HEADS, HEAD_DIM, CACHE_ROWS = 4, 2, 8, 96
SHAPES: dict[str, list[str | int]] = {
    "q": ["B", HEADS, "S", HEAD_DIM],
    "k": ["B", KV_HEADS, "M", HEAD_DIM],
    "v": ["B", KV_HEADS, "M", HEAD_DIM],
}


def two_layers() -> ModelProto:
    """Two attentions over the same mask: one reads fresh rows from a cache it writes, the other an input."""
    nodes = [
        helper.make_node("TensorScatter", ["k", "rows", "start"], ["new_k"], axis=2),
        helper.make_node("Attention", ["q", "new_k", "v", "mask"], ["y"]),
        helper.make_node("Attention", ["y", "new_k", "k", "mask"], ["out"]),
    ]
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
    inputs = [
        *floats,
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["B", KV_HEADS, "S", HEAD_DIM]),
        helper.make_tensor_value_info("start", TensorProto.INT64, ["B"]),
        helper.make_tensor_value_info("length", TensorProto.INT64, ["B"]),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, ["B", 1, "S", "M"]),
    ]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, SHAPES["q"])]
    graph = helper.make_graph(nodes, "two_layers", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def feeds(starts: list[int], rows: int) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(0)
    batch = len(starts)
    start = np.array(starts, np.int64)
    last = start[:, None] + np.arange(rows)
    length = start + rows
    columns = np.arange(CACHE_ROWS)
    mask = (columns <= last[:, :, None]) & (columns < length[:, None, None])

    def draw(*shape: int) -> NDArray[np.float32]:
        return random.standard_normal(shape).astype(np.float32)

    return {
        "q": draw(batch, HEADS, rows, HEAD_DIM),
        "k": draw(batch, KV_HEADS, CACHE_ROWS, HEAD_DIM),
        "v": draw(batch, KV_HEADS, CACHE_ROWS, HEAD_DIM),
        "rows": draw(batch, KV_HEADS, rows, HEAD_DIM),
        "start": start,
        "length": length,
        "mask": mask[:, None],
    }


def run(model: ModelProto, inputs: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    outputs: list[NDArray[np.float32]] = session.run(None, {n: v for n, v in inputs.items() if n in names})
    return outputs[0]


@pytest.mark.parametrize("rows", [2, 3, 16])
@pytest.mark.parametrize("starts", [[0], [7], [CACHE_ROWS - 16], [5, 60, 0]])
def test_the_numbers_are_the_same_bit_for_bit(starts: list[int], rows: int) -> None:
    inputs = feeds(starts, rows)
    assert np.array_equal(run(two_layers(), inputs), run(live_length(two_layers()), inputs))


def test_rows_beyond_the_live_length_are_not_even_read() -> None:
    """Under a mask alone, a NaN in a hidden row poisons the output."""
    inputs = feeds([7], 2)
    inputs["k"][:, :, 20:] = inputs["v"][:, :, 20:] = np.nan
    assert np.isnan(run(two_layers(), inputs)).any()
    assert np.isfinite(run(live_length(two_layers()), inputs)).all()


def test_a_tensor_that_several_attentions_read_is_sliced_once() -> None:
    nodes = [node.op_type for node in live_length(two_layers()).graph.node]
    assert nodes.count("Slice") == 4  # new_k, v, mask, k
    assert nodes.count("ReduceMax") == 1


def test_the_given_model_is_left_as_it_was() -> None:
    model = two_layers()
    before = model.SerializeToString()
    live_length(model)
    assert model.SerializeToString() == before


def test_a_program_without_attention_stays_the_same() -> None:
    graph = helper.make_graph([], "empty", [], [])
    model = helper.make_model(graph)
    assert live_length(model).SerializeToString() == model.SerializeToString()
