"""Public faults of number formats, planted: each is caught, refused or kept out."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from dflash_engines import contract, golden, onnxruntime_cpu
from dflash_engines.backend import Buffers, Options, Run
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Dtype, Limits
from dflash_engines.errors import CheckpointError, EngineError
from dflash_engines.lowerings.half_precision import FC
from dflash_engines.lowerings.int8_activations import InputRange
from dflash_engines.lowerings.quantized_weights import matrix, products
from dflash_engines.manifest import Precision
from dflash_export import golden_cases
from dflash_export.precision import calibration, report
from dflash_export.precision.calibration import Observed, Seen
from dflash_export.precision.formats import Findings, Formats, lower
from dflash_export.precision.graph_in_torch import TorchGraph, to_numpy, to_torch
from dflash_export.precision.prepare import prepare
from dflash_export.precision.smoothing import MOST_LOST, best_range, input_ranges
from tests.engines.scripted_bundle import write_bundle
from tests.export.precision.conftest import BLOCK_SIZE, MASK, Tiny
from tests.export.precision.running import in_torch, prompt_inputs

DOWN, VALUES = "model.model.layers.2.mlp.down_proj", "model.model.layers.2.self_attn.q_proj+k_proj+v_proj"
FP16 = Formats(target="fp16", draft="fp16")


def scaled(model: ir.Model, node_name: str, factor: float) -> ir.Model:
    """The model with one product's weight multiplied."""
    node = next(n for n in model.graph if n.name == node_name)
    weight = node.inputs[1]
    assert weight is not None
    weight.const_value = ir.tensor((matrix(node) * factor).astype(np.float32), name=weight.name)
    return model


def planted(tiny: Tiny, node_name: str, factor: float) -> dict[str, ir.Model]:
    models = tiny.clones()
    scaled(models["target"], node_name, factor)
    return models


def logits(model: ir.Model, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = in_torch(model, prompt_inputs(model, tokens))["logits"]
    return found


def test_a_product_beyond_fp16_is_found_and_stays_in_fp32(tiny: Tiny) -> None:
    """B57, B67: without the look, the residual stream would be infinite, and norms would hide it."""
    models = planted(tiny, DOWN, 1e5)
    prepared = prepare(models, FP16, tiny.prompts[:5], BLOCK_SIZE, MASK)
    assert [(o.reader, o.remedy) for o in prepared.overflows if o.reader == DOWN] == [(DOWN, "fp32")]
    assert max(o.largest for o in prepared.overflows if o.reader == DOWN) > 65504 / 4
    blind = logits(lower(models["target"], "target", FP16, Findings()), tiny.prompts[0])
    assert not np.isfinite(blind).all()
    wanted = logits(models["target"], tiny.prompts[0])
    found = logits(lower(models["target"], "target", FP16, prepared.of("target")), tiny.prompts[0])
    assert np.abs(found - wanted).mean() < 0.01 * wanted.std()


def test_taps_beyond_fp16_are_scaled(tiny: Tiny) -> None:
    """B22: a drafter that reads infinite taps drafts nonsense, and nothing says so."""
    models = planted(tiny, DOWN, 3e4)
    prepared = prepare(models, FP16, tiny.prompts[:5], BLOCK_SIZE, MASK)
    shift = prepared.of("target").tap_shift
    assert shift > 0
    assert f"scaled by 2^-{shift}" in {o.remedy for o in prepared.overflows if o.reader == FC}
    inputs = prompt_inputs(lower(models["target"], "target", FP16, prepared.of("target")), tiny.prompts[0])
    found = in_torch(lower(models["target"], "target", FP16, prepared.of("target")), inputs)
    wanted = in_torch(models["target"], prompt_inputs(models["target"], tiny.prompts[0]))
    name = "new_draft_value_0"
    assert np.abs(found[name] - wanted[name]).mean() < 0.01 * wanted[name].std()


def test_values_beyond_fp16_are_refused_or_bf16(tiny: Tiny) -> None:
    models = planted(tiny, VALUES, 1e4)
    with pytest.raises(CheckpointError, match=r"fp16 ends at 65504, and .* in target, reaches .*--precision fp32"):
        prepare(models, FP16, tiny.prompts[:5], BLOCK_SIZE, MASK)
    for precision in ("fp16", "int4"):
        asked = Formats(backend="tensorrt", target=precision, draft=precision)
        prepared = prepare(models, asked, tiny.prompts[:5], BLOCK_SIZE, MASK)
        assert prepared.formats.float_type == "bf16"
        assert {o.remedy for o in prepared.overflows} == {"bf16"}
        model = lower(models["target"], "target", prepared.formats, prepared.of("target"))
        assert np.isfinite(logits(model, tiny.prompts[0])).all()


def test_a_nan_counts_as_beyond_fp16(tiny: Tiny) -> None:
    models = planted(tiny, DOWN, float("nan"))
    with pytest.raises(CheckpointError, match="reaches inf"):
        prepare(models, FP16, tiny.prompts[:5], BLOCK_SIZE, MASK)


def test_an_outlier_channel_is_smoothed_and_one_row_alone_is_not_quantised() -> None:
    """B86: one step for a whole tensor follows its largest number; everything else rounds to nothing."""
    random = np.random.default_rng(0)
    weight = random.normal(size=(64, 96)).astype(np.float32)
    rows = random.normal(size=(40, 64)).astype(np.float32)
    rows[:, 5] *= 500
    outlier = Seen(largest=torch.from_numpy(np.abs(rows).max(0)), rows=torch.from_numpy(rows))
    choice, lost = best_range(weight * np.where(np.arange(64) == 5, 0.01, 1)[:, None].astype(np.float32), outlier)
    assert lost < MOST_LOST
    assert choice.smoothing[5] > 5 * np.median(choice.smoothing)
    rows = random.normal(size=(40, 64)).astype(np.float32)
    rows[0] *= 3000
    spike = Seen(largest=torch.from_numpy(np.abs(rows).max(0)), rows=torch.from_numpy(rows))
    assert best_range(weight, spike)[1] > MOST_LOST


def test_a_product_that_int8_inputs_would_ruin_keeps_its_input(tiny: Tiny, observed: dict[str, Observed]) -> None:
    seen = dict(observed["target"].inputs)
    rows = seen[DOWN].rows.clone()
    rows[0] *= 1e5
    seen[DOWN] = Seen(largest=rows.abs().amax(0), rows=rows)
    ranges = input_ranges(tiny.models["target"], seen)
    assert DOWN not in ranges
    assert VALUES in ranges
    model = lower(tiny.models["target"], "target", Formats(backend="tensorrt", target="int8", draft="int8"),
                  Findings(ranges=ranges))  # fmt: skip
    node = next(n for n in model.graph if n.name == DOWN)
    kinds = [value.producer().op_type for value in node.inputs if value is not None]  # type: ignore[union-attr]
    assert kinds == ["Cast", "DequantizeLinear"]


def test_scales_of_columns_keep_small_columns(tiny: Tiny) -> None:
    """B86: with one scale for a whole weight, a column of small weights would be zero."""
    model = tiny.models["target"].clone()
    node = next(n for n in model.graph if n.name == DOWN)
    weight = matrix(node).copy()
    weight[:, 3] *= 1e-3
    assert node.inputs[1] is not None
    node.inputs[1].const_value = ir.tensor(weight, name=node.inputs[1].name)
    asked = Formats(backend="tensorrt", target="int8", draft="int8", weight_only=True)
    lowered = lower(model, "target", asked, Findings())
    constants = TorchGraph(lowered).constants
    read = constants[f"{DOWN}.weight_q"].float() * constants[f"{DOWN}.weight_scale"].float()
    off = (read - torch.from_numpy(weight)).abs().amax(0) / torch.from_numpy(np.abs(weight).max(0))
    assert float(off.max()) < 0.01


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        ("bf16", "bf16", "multiplies no bf16"),  # B59
        ("fp32", "fp16", "one type"),
        ("int8", "bf16", "multiplies no bf16"),
    ],
)
def test_formats_that_cannot_be_are_refused(target: Precision, draft: Precision, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Formats(target=target, draft=draft)


def test_a_bf16_bundle_is_refused_by_the_cpu_in_a_sentence(tmp_path: Path) -> None:
    """B59: not by a NOT_IMPLEMENTED from the depths of a session."""
    scripted = Bundle.open(write_bundle(tmp_path / "bundle"))
    geometry = replace(scripted.manifest.geometry, cache_dtype=Dtype.BFLOAT16)
    bf16 = replace(scripted, manifest=scripted.manifest.model_copy(update={"geometry": geometry}))
    with pytest.raises(EngineError, match="is bf16, which ONNX Runtime doesn't multiply on the CPU"):
        onnxruntime_cpu.load(bf16, Options())


def test_too_few_or_unreadable_calibration_prompts_are_refused(tmp_path: Path) -> None:
    """B86: ranges of four texts are chance."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"turns": [f"question {i}"]}) for i in range(4)), encoding="utf-8")
    with pytest.raises(CheckpointError, match="has 4 prompts; calibration takes at least 5"):
        calibration.read_prompts(path)
    for content in ('{"turns": []}', "no JSON", '["a"]'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(CheckpointError, match="is not a prompts file"):
            calibration.read_prompts(path)
    with pytest.raises(CheckpointError, match="is not a prompts file"):
        calibration.read_prompts(tmp_path / "none.jsonl")


def test_what_is_calibrated_on_is_not_reported_on() -> None:
    reported = report.read(8)
    report.check_apart(calibration.read_prompts(calibration.DEFAULT), reported)
    with pytest.raises(CheckpointError, match="take it out"):
        report.check_apart(["another", reported[3]], reported)


def test_taps_drift_little(tiny: Tiny, observed: dict[str, Observed]) -> None:
    """B90: what the drafter reads of the target, half precision against fp32."""
    wanted, found = taps(tiny.models["target"], tiny), {}
    for precision in ("fp16", "bf16"):
        asked = Formats(backend="tensorrt", target=precision, draft=precision)
        found[precision] = taps(lower(tiny.models["target"], "target", asked, Findings()), tiny)
    assert (found["fp16"] - wanted).norm() < 2e-3 * wanted.norm()
    assert (found["bf16"] - wanted).norm() < 2e-2 * wanted.norm()


def taps(model: ir.Model, tiny: Tiny) -> torch.Tensor:
    seen: dict[str, torch.Tensor] = {}
    inputs = {name: to_torch(a) for name, a in prompt_inputs(model, tiny.prompts[0]).items()}
    TorchGraph(model).run(inputs, lambda name, value: seen.update({name: value.float()}))
    name = next(n for n in tiny.models["target"].graph if n.name == FC).inputs[0].name  # type: ignore[union-attr]
    return seen[str(name)]


class Graphs:
    """Target and draft in PyTorch, for the golden test."""

    def __init__(self, models: dict[str, ir.Model]) -> None:
        self.graphs = {name: TorchGraph(model) for name, model in models.items()}

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        def run() -> None:
            found = self.graphs[program].run({name: to_torch(array) for name, array in inputs.items()})
            for name, array in outputs.items():
                np.copyto(array, to_numpy(found[name]))

        return run


def runner(tiny: Tiny, models: dict[str, ir.Model]) -> golden.Runner:
    half = replace(tiny.geometry, cache_dtype=Dtype.FLOAT16)
    limits = Limits(max_len=64, max_batch=2, prefill_chunk=16, block_sizes=(BLOCK_SIZE,))
    return golden.Runner(Graphs(models), (contract.target(half), contract.draft(half)), limits)


def _a_scale_doubled(model: ir.Model) -> None:
    _change(model, f"{DOWN}.weight_scale", lambda scale: scale * 2)


def _scales_of_other_columns(model: ir.Model) -> None:
    _change(model, f"{DOWN}.weight_scale", lambda scale: np.roll(scale, 1, -1))


def _steps_of_an_input_halved(model: ir.Model) -> None:
    _change(model, f"{DOWN}.input_scale", lambda step: step / 16)


def _smoothing_left_out(model: ir.Model) -> None:
    _change(model, f"{DOWN}.smoothing", np.ones_like)


def _change(model: ir.Model, name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    value = model.graph.initializers[name]
    assert value.const_value is not None
    array = value.const_value.numpy()
    value.const_value = ir.tensor(change(array).astype(array.dtype), name=name)


@pytest.mark.parametrize(
    "plant", [_a_scale_doubled, _scales_of_other_columns, _steps_of_an_input_halved, _smoothing_left_out]
)
def test_the_golden_test_catches_a_wrong_lowering(
    tiny: Tiny, observed: dict[str, Observed], plant: Callable[[ir.Model], None]
) -> None:
    asked = Formats(backend="tensorrt", target="int8", draft="int8")
    ranges = {name: dict(input_ranges(model, observed[name].inputs)) for name, model in tiny.models.items()}
    smooth = InputRange(smoothing=np.geomspace(0.5, 4, 416).astype(np.float32), largest=40.0)
    ranges["target"][DOWN] = smooth
    models = {n: lower(m, n, asked, Findings(ranges=ranges[n])) for n, m in tiny.models.items()}
    cases = golden_cases.record(runner(tiny, models), tiny.prompts[:2], BLOCK_SIZE, MASK, tolerance=0.5)
    assert golden.check(cases, runner(tiny, models)) == 0.0
    plant(models["target"])
    with pytest.raises(EngineError, match="golden case"):
        golden.check(cases, runner(tiny, models))


def test_bytes_say_which_format_the_weights_are_in(tiny: Tiny) -> None:
    """B68: an fp16 file that is as large as fp32 isn't fp16."""
    sizes = {}
    for precision in ("fp32", "fp16", "bf16", "int8", "int4"):
        asked = Formats(backend="tensorrt", target=precision, draft=precision, weight_only=True)
        model = lower(tiny.models["target"], "target", asked, Findings())
        sizes[precision] = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    quantised = sum(matrix(node).size for node in products(tiny.models["target"].graph, keep={FC}))
    assert sizes["fp16"] == sizes["bf16"] < 0.51 * sizes["fp32"]
    assert sizes["int4"] < sizes["int8"] < sizes["fp16"]
    assert sizes["fp16"] - sizes["int8"] > 0.7 * quantised
