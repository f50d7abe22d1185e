"""Each lowering, before and after: the same numbers on the same inputs, within what its format can hold."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from dflash_engines.lowerings.half_precision import FC, scale_taps
from dflash_engines.lowerings.quantized_weights import products
from dflash_engines.manifest import Backend, Precision
from dflash_export.precision.calibration import Observed
from dflash_export.precision.formats import Findings, Formats, lower, target_heads
from dflash_export.precision.overflow import tap_shift
from dflash_export.precision.smoothing import input_ranges
from tests.export.precision.conftest import MASK, Tiny
from tests.export.precision.running import Run, block_inputs, in_onnxruntime, in_torch, prompt_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A number format, where it can run, and how far it may be off."""

    precision: Precision
    backend: Backend = "tensorrt"
    weight_only: bool = False
    run: Run = in_torch
    logits_off: float  # mean, in standard deviations
    confidence_off: float  # mean, of drafted tokens
    agreement: float  # of the likeliest tokens

    @property
    def name(self) -> str:
        words = [self.precision, self.backend, "weights" if self.weight_only else "", self.run.__name__]
        return "-".join(word for word in words if word)

    @property
    def formats(self) -> Formats:
        return Formats(backend=self.backend, target=self.precision, draft=self.precision, weight_only=self.weight_only)


FORMS = (
    Form(precision="fp32", logits_off=1e-5, confidence_off=1e-5, agreement=1.0),
    Form(precision="fp16", logits_off=0.003, confidence_off=0.005, agreement=0.98),
    Form(precision="fp16", backend="onnxruntime", run=in_onnxruntime, logits_off=0.003, confidence_off=0.005,
         agreement=0.98),
    Form(precision="bf16", logits_off=0.015, confidence_off=0.03, agreement=0.95),
    Form(precision="int8", weight_only=True, logits_off=0.02, confidence_off=0.04, agreement=0.95),
    Form(precision="int8", logits_off=0.05, confidence_off=0.15, agreement=0.90),
    Form(precision="int8", backend="onnxruntime", run=in_onnxruntime, logits_off=0.03, confidence_off=0.04,
         agreement=0.95),
    Form(precision="int4", logits_off=0.2, confidence_off=0.25, agreement=0.75),
    Form(precision="int4", backend="onnxruntime", run=in_onnxruntime, logits_off=0.2, confidence_off=0.25,
         agreement=0.75),
)  # fmt: skip
W8A8 = FORMS[5]
PROMPTS = 4
Array = NDArray[np.float32]


def findings(tiny: Tiny, observed: dict[str, Observed], program: str) -> Findings:
    model, seen = tiny.models[program], observed[program]
    return Findings(ranges=input_ranges(model, seen.inputs), tap_shift=tap_shift(seen, model.graph) + 3)


def lowered(tiny: Tiny, observed: dict[str, Observed], form: Form) -> dict[str, ir.Model]:
    return {
        name: lower(model, name, form.formats, findings(tiny, observed, name)) for name, model in tiny.models.items()
    }


def computed(models: dict[str, ir.Model], run: Run, tokens: tuple[int, ...]) -> tuple[Array, Array]:
    """The target's logits [S,V] over a prompt, and the drafter's confidence in blocks along it."""
    written = run(models["target"], prompt_inputs(models["target"], tokens))
    starts = range(len(tokens) - 1, 2, -7)  # from the end: a block leaves its rows behind
    inputs = (block_inputs(models["draft"], written, tokens[start], start, MASK) for start in starts)
    return written["logits"][0], np.concatenate([run(models["draft"], i)["confidence"][0] for i in inputs])


@pytest.fixture(scope="module")
def wanted(tiny: Tiny) -> list[tuple[Array, Array]]:
    """The traced programs' own numbers, by ONNX Runtime."""
    return [computed(dict(tiny.models), in_onnxruntime, tokens) for tokens in tiny.prompts[:PROMPTS]]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_numbers_stay_what_they_were(
    tiny: Tiny, observed: dict[str, Observed], wanted: list[tuple[Array, Array]], form: Form
) -> None:
    models = lowered(tiny, observed, form)
    found = [computed(models, form.run, tokens) for tokens in tiny.prompts[:PROMPTS]]
    (logits, confidence), (logits_fp32, confidence_fp32) = (
        [np.concatenate(part) for part in zip(*side, strict=True)] for side in (found, wanted)
    )
    assert np.abs(logits - logits_fp32).mean() / logits_fp32.std() <= form.logits_off
    assert np.abs(confidence - confidence_fp32).mean() <= form.confidence_off
    assert (logits.argmax(-1) == logits_fp32.argmax(-1)).mean() >= form.agreement


@pytest.mark.parametrize("form", FORMS[1:], ids=lambda form: form.name)
def test_graphs_are_valid_and_typed(tiny: Tiny, observed: dict[str, Observed], form: Form) -> None:
    """Norms, residual sums and logits are fp32 in every format; products, attention and caches are the format's."""
    half = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16, "fp32": ir.DataType.FLOAT}
    float_type = half[form.formats.float_type]
    for model in lowered(tiny, observed, form).values():
        if form.backend != "onnxruntime":
            onnx.checker.check_model(ir.to_proto(model), full_check=True)
            assert set(model.graph.opset_imports) == {""}
        typed = {value.name: value.dtype for node in model.graph for value in node.outputs}
        for node in model.graph:
            if node.op_type == "RMSNormalization":
                assert {value.dtype for value in (*node.inputs, *node.outputs) if value is not None} == {
                    ir.DataType.FLOAT
                }
            if node.op_type in ("Attention", "TensorScatter"):
                assert typed[node.outputs[0].name] == float_type
        caches = [v for v in (*model.graph.inputs, *model.graph.outputs) if v.shape is not None and len(v.shape) == 4]
        assert {cache.dtype for cache in caches} == {float_type}
        assert {v.dtype for v in model.graph.outputs if v.name in ("logits", "confidence")} == {ir.DataType.FLOAT}


@pytest.mark.parametrize("form", FORMS[4:], ids=lambda form: form.name)
def test_fc_and_the_targets_head_stay_and_the_drafters_head_does_not(
    tiny: Tiny, observed: dict[str, Observed], form: Form
) -> None:
    models = lowered(tiny, observed, form)
    plain = {name: {n.name for n in products(model.graph, keep=())} for name, model in models.items()}
    assert plain["target"] == {FC, *target_heads(tiny.models["target"].graph)}
    assert plain["draft"] == set()
    asked = Formats(backend=form.backend, target=form.precision, draft=form.precision, quantize_head=True)
    head = lower(tiny.models["target"], "target", asked, findings(tiny, observed, "target"))
    assert {n.name for n in products(head.graph, keep=())} == {FC}


def test_scaled_taps_give_the_same_bits(tiny: Tiny) -> None:
    scaled = tiny.models["target"].clone()
    scale_taps(scaled.graph, 5)
    inputs = prompt_inputs(scaled, tiny.prompts[0])
    before, after = in_torch(tiny.models["target"], inputs), in_torch(scaled, inputs)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


def test_steps_are_constants_so_rejected_rows_change_nothing(tiny: Tiny, observed: dict[str, Observed]) -> None:
    """The rows behind the first three hold other tokens, with other magnitudes."""
    target = lowered(tiny, observed, W8A8)["target"]
    for node in target.graph:
        if node.op_type == "QuantizeLinear":
            assert node.inputs[1] is not None
            assert node.inputs[1].is_initializer()
    tokens = tiny.prompts[0]
    other = (*tokens[:3], *(7 for _ in tokens[3:]))
    first, second = (in_torch(target, prompt_inputs(target, t))["logits"][0, :3] for t in (tokens, other))
    np.testing.assert_array_equal(first, second)


def test_int4_is_stored_in_half_a_byte(tiny: Tiny, observed: dict[str, Observed]) -> None:
    model = lowered(tiny, observed, FORMS[7])["target"]
    weights = [v.const_value for v in model.graph.initializers.values() if v.dtype == ir.DataType.INT4]
    assert weights
    for tensor in weights:
        assert tensor is not None
        assert len(tensor.tobytes()) == tensor.size // 2
        assert tensor.numpy().dtype == ml_dtypes.int4
