"""Rewrites change names and shapes of weights, never a number; weights are stored once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from dflash_engines.contract import Binding, Dim, Dtype, Program
from dflash_engines.lowerings.matmul_nbits import matmul_nbits
from dflash_export import rewrite
from dflash_export.trace import trace
from dflash_export.weights import SMALLEST, WeightFile

WIDTH = 64
CPU = ["CPUExecutionProvider"]
PROGRAM = Program(
    name="products",
    inputs=(Binding(name="x", dtype=Dtype.FLOAT, shape=(Dim.SLOTS, Dim.ROWS_IN, WIDTH), meaning="rows"),),
    outputs=(Binding(name="y", dtype=Dtype.FLOAT, shape=(Dim.SLOTS, Dim.ROWS_IN, WIDTH), meaning="rows"),),
)


class Products(nn.Module):
    """Three products of one input, a fourth of another, and a fifth by a weight that is also looked up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, n) for n in (48, 16, 16, WIDTH))
        self.mix = nn.Linear(80, WIDTH, bias=False)
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1))
        rows: Tensor = self.o_proj(mixed)
        return rows @ self.table.T + self.table[0]


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    result: np.ndarray = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=CPU).run(
        None, {"x": x}
    )[0]
    return result


@pytest.fixture
def traced() -> ir.Model:
    return trace(Products().eval(), PROGRAM)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, 6, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("change", [rewrite.name_weights, rewrite.merge_products])
def test_a_rewrite_keeps_every_number(traced: ir.Model, rows: np.ndarray, change: Callable[[ir.Graph], object]) -> None:
    before = run(traced, rows)
    change(traced.graph)
    np.testing.assert_allclose(run(traced, rows), before, rtol=1e-5, atol=1e-5)


def test_products_of_one_input_become_one(traced: ir.Model) -> None:
    rewrite.name_weights(traced.graph)
    assert rewrite.merge_products(traced.graph) == 3
    names = {node.name for node in rewrite.products(traced.graph)}
    assert names >= {"q_proj+k_proj+v_proj", "mix", "o_proj"}
    assert len(names) == 4  # and the table's, which is no module's
    assert traced.graph.initializers["q_proj+k_proj+v_proj.weight_t"].shape == ir.Shape([WIDTH, 80])
    assert "q_proj.weight_t" not in traced.graph.initializers


def test_int8_keeps_what_it_is_told_to_and_stays_close(traced: ir.Model, rows: np.ndarray) -> None:
    rewrite.name_weights(traced.graph)
    before = run(traced, rows)
    lowered = matmul_nbits(traced, 8, keep=["mix"])
    kinds = {node.name: node.op_type for node in lowered.graph if node.op_type.startswith("MatMul")}
    assert kinds["mix"] == "MatMul"
    assert sum(kind == "MatMulNBits" for kind in kinds.values()) == 5
    off = np.abs(run(lowered, rows) - before).max() / before.std()
    assert 0 < off < 0.1


def test_equal_weights_are_stored_once_and_load_from_any_folder(
    traced: ir.Model, rows: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(traced, rows)
    tensors = [v.const_value for v in traced.graph.initializers.values() if v.const_value is not None]
    distinct = {tensor.tobytes() for tensor in tensors if tensor.nbytes >= SMALLEST}
    with WeightFile(tmp_path / "weights.bin") as weights:
        for name in ("one", "two"):
            model = trace(Products().eval(), PROGRAM)
            weights.take(model)
            ir.save(model, tmp_path / f"{name}.onnx")
    size = (tmp_path / "weights.bin").stat().st_size
    assert size < sum(map(len, distinct)) + 4096 * len(distinct)
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(
        ort.InferenceSession(moved / "two.onnx", providers=CPU).run(None, {"x": rows})[0], before
    )


def test_the_tracers_notes_are_dropped(traced: ir.Model) -> None:
    rewrite.strip(traced)
    assert str(Path(__file__).parent).encode() not in ir.to_proto(traced).SerializeToString()


@pytest.mark.slow
def test_weights_beyond_two_gigabytes_load(tmp_path: Path) -> None:
    """protobuf ends at 2 GB; a weight that lies behind that offset must still be found."""
    weight = np.random.default_rng(2).normal(size=(WIDTH, WIDTH)).astype(np.float32)
    x = ir.Value(name="x", shape=ir.Shape([2, WIDTH]), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", shape=ir.Shape(weight.shape), type=ir.TensorType(ir.DataType.FLOAT),
                 const_value=ir.tensor(weight, name="w"))  # fmt: skip
    product = ir.node("MatMul", [x, w])
    product.outputs[0].name, product.outputs[0].type = "y", ir.TensorType(ir.DataType.FLOAT)
    product.outputs[0].shape = ir.Shape([2, WIDTH])
    graph = ir.Graph([x], [product.outputs[0]], nodes=[product], initializers=[w], opset_imports={"": 24}, name="far")
    model = ir.Model(graph, ir_version=10)
    with WeightFile(tmp_path / "weights.bin") as weights:
        weights.place(np.zeros(2**31 + 12345, np.uint8))
        weights.take(model)
    ir.save(model, tmp_path / "far.onnx")
    rows = np.random.default_rng(3).normal(size=(2, WIDTH)).astype(np.float32)
    found = ort.InferenceSession(tmp_path / "far.onnx", providers=CPU).run(None, {"x": rows})[0]
    np.testing.assert_allclose(found, rows @ weight, rtol=1e-4, atol=1e-4)
