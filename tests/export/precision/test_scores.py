"""Scores against values worked out by hand, and the interpreter's refusal."""

import numpy as np
import onnx_ir as ir
import pytest

from dflash_engines.errors import CheckpointError, EngineError
from dflash_export.precision import report, scores
from dflash_export.precision.graph_in_torch import TorchGraph

EVEN, SKEWED = np.log([[0.5, 0.5], [0.25, 0.75]]), np.log([[0.25, 0.75], [0.25, 0.75]])


def test_divergence_is_that_of_the_reference_from_what_was_found() -> None:
    wanted = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    np.testing.assert_allclose(scores.kl_divergence(EVEN, SKEWED), [wanted, 0], atol=1e-12)
    np.testing.assert_allclose(scores.kl_divergence(EVEN + 7, SKEWED - 3), [wanted, 0], atol=1e-12)


def test_likelihood_is_of_the_token_after_each_row() -> None:
    logits = np.log([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]])
    np.testing.assert_allclose(scores.negative_log_likelihood(logits, [0, 1, 0]), -np.log([0.5, 0.25]))


def test_agreement_is_of_the_likeliest_token() -> None:
    assert scores.agreement(np.array([[1, 2], [3, 1]]), np.array([[0, 9], [0, 1]])).tolist() == [True, False]


def test_texts_are_compared_with_the_references() -> None:
    same = ["the cat sat on the mat", "π"]
    assert (scores.chrf(same, same), scores.rouge_l(same, same)) == (100, 1)
    assert scores.rouge_l(["the cat sat on the mat"], ["the cat lay on the mat"]) == pytest.approx(5 / 6)
    assert scores.rouge_l(["π"], ["Ω"]) == 0
    assert 0 < scores.chrf(["abcdef"], ["abcxyz"]) < 60


def test_prompts_to_report_on_are_as_many_as_there_are() -> None:
    assert len(report.read(8)) == 8
    assert report.read(0) == []
    with pytest.raises(CheckpointError, match="choose 0 to 8, not 9"):
        report.read(9)


def test_an_operator_that_pytorch_does_not_run_is_named() -> None:
    x = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Hardmax", [x], name="odd")
    model = ir.Model(ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 24}), ir_version=11)
    with pytest.raises(EngineError, match=r"no Hardmax here \(odd\)"):
        TorchGraph(model)
