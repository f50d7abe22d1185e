"""An export is a whole bundle or nothing; what is planted wrong is caught before a bundle is written."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from torch import Tensor, float32, nn, no_grad, tensor
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from dflash_engines import golden
from dflash_engines.backend import Options, load_engine
from dflash_engines.bundle import Bundle
from dflash_engines.contract import Limits
from dflash_engines.errors import CheckpointError, EngineError
from dflash_engines.host_engine import declared_programs
from dflash_engines.manifest import Parity
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_export import parity, program_files
from dflash_export.cli import app
from dflash_export.parity import Gate
from dflash_export.pipeline import ExportRequest, export
from dflash_export.programs.target import Target
from dflash_export.trace import trace
from dflash_runtime.decoder import Decoder
from tests.export.conftest import ExportPair
from tests.export.pairs import FAMILY_CASES, PairCase, write_pair

LLAMA = FAMILY_CASES[0]


def request(folder: Path, **changes: object) -> ExportRequest:
    target, drafter = write_pair(PairCase(name="pair"), folder)
    fields = {"target": str(target), "drafter": str(drafter), "out": folder / "bundle", "max_len": 128,
              "prefill_chunk": 16}  # fmt: skip
    return ExportRequest(**(fields | changes))  # type: ignore[arg-type]


def test_a_bundle_says_what_it_is(export_pair: ExportPair) -> None:
    target, drafter, bundle = export_pair(LLAMA)
    manifest = bundle.manifest
    assert (manifest.target.id, manifest.drafter.id) == (str(target), str(drafter))
    assert manifest.target_layer_ids == (0, 2)
    assert manifest.stop_token_ids == (0, 1)
    assert manifest.parity["target"].argmax_agreement == 1.0
    assert set(manifest.files) >= {"target.onnx", "weights.bin", "tokenizer.json", "golden.npz", "chat_template.jinja"}
    assert not [p for p in bundle.path.parent.iterdir() if p.name.startswith(".")]


def test_programs_hold_standard_operators_only(export_pair: ExportPair) -> None:
    bundle = export_pair(LLAMA)[2]
    for name in bundle.manifest.programs:
        model = onnx.load(bundle.program(name), load_external_data=False)
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 24)]
        onnx.checker.check_model(str(bundle.program(name)), full_check=True)


def test_one_attention_and_two_cache_updates_a_layer(export_pair: ExportPair) -> None:
    bundle = export_pair(LLAMA)[2]
    kinds = [n.op_type for n in onnx.load(bundle.program("target"), load_external_data=False).graph.node]
    assert kinds.count("Attention") == 4
    assert kinds.count("TensorScatter") == 2 * 4 + 2 * 2  # the target's layers, and the drafter's context


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        export(request(tmp_path))
    assert not list((tmp_path / "bundle").iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_sizes": (9,)}, "blocks of up to 8"),
        ({"block_sizes": (1,)}, "from 2"),
        ({"max_len": 513}, "512 positions"),
        ({"draft_vocab": 10}, "token_counts.json"),
    ],
)
def test_limits_that_cannot_be_are_refused_before_any_work(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        export(request(tmp_path, **changes))
    assert not (tmp_path / "bundle").exists()


def test_a_wrong_program_fails_parity_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest row of every call is not attended: logits stay plausible, so only the comparison can tell."""
    monkeypatch.setattr(program_files, "trace", lambda module, program: trace(_shifted(module), program))
    with pytest.raises(CheckpointError, match="target does not compute what PyTorch does"):
        export(request(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["drafter", "target"]


def _shifted(module: nn.Module) -> nn.Module:
    """The module; or if it is the target, one that attends a row too few."""
    if not isinstance(module, Target):
        return module
    right = module.forward

    class Shifted(nn.Module):
        def forward(
            self, tokens: Tensor, start: Tensor, length: Tensor, rows: Tensor, *caches: Tensor
        ) -> tuple[Tensor, ...]:
            return right(tokens, start, length - 1, rows, *caches)

    return Shifted()


def test_golden_cases_catch_a_wrong_lowering(export_pair: ExportPair, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = export_pair(LLAMA)[2]
    cases = golden.Golden.load(bundle.file(golden.FILE))

    def worst(lowering: str) -> float:
        monkeypatch.setattr("dflash_engines.onnxruntime_cpu.live_length", PLANTED[lowering])
        programs = OnnxRuntimePrograms(bundle, Options())
        runner = golden.Runner(programs, declared_programs(bundle.manifest), bundle.manifest.limits)
        return golden.check(cases, runner)

    assert worst("none") < 1e-3
    for lowering in ("scale halved", "mask dropped"):
        with pytest.raises(EngineError, match="golden case"):
            worst(lowering)


def test_the_first_load_on_a_machine_refuses_a_wrong_lowering(
    export_pair: ExportPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = export_pair(LLAMA)[2]
    monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path))
    with monkeypatch.context() as planted:
        planted.setattr("dflash_engines.onnxruntime_cpu.live_length", _scale_halved)
        with pytest.raises(EngineError, match="golden case"):
            load_engine(bundle, "onnxruntime", Options())
    load_engine(bundle, "onnxruntime", Options())
    assert len(list((tmp_path / "proofs").iterdir())) == 1


def _none(model: onnx.ModelProto) -> onnx.ModelProto:
    return model


def _scale_halved(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Attention" and attribute.name == "scale":
                attribute.f /= 2
    return model


def _mask_dropped(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        if node.op_type == "Attention":
            del node.input[3]
    return model


PLANTED = {"none": _none, "scale halved": _scale_halved, "mask dropped": _mask_dropped}


def test_int8_decodes_losslessly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Random weights leave small margins; the gate itself is tested on the demo pair's real ones.
    monkeypatch.setitem(parity.GATES, ("int8", "target"), Gate(largest_difference=2.0, argmax_agreement=0.8))
    bundle = export(request(tmp_path, precision="int8"))
    kinds = [n.op_type for n in onnx.load(bundle.program("draft"), load_external_data=False).graph.node]
    assert kinds.count("MatMulNBits") >= 4 * 2 + 1  # two layers and the head
    names = {n.name: n.op_type for n in onnx.load(bundle.program("target"), load_external_data=False).graph.node}
    assert names["drafter.fc"] == "MatMul"
    decoder = Decoder.load(bundle.path)
    plain = decoder.complete("x = [1, 2, 3]", max_new_tokens=24, block_size=1)
    assert decoder.complete("x = [1, 2, 3]", max_new_tokens=24, block_size=8).token_ids == plain.token_ids


def test_an_int8_drafter_under_an_fp32_target_changes_no_output(export_pair: ExportPair, tmp_path: Path) -> None:
    mixed = export(request(tmp_path, draft_precision="int8"))
    assert (mixed.manifest.precision, mixed.manifest.draft_precision) == ("fp32", "int8")
    domains = {
        name: {n.domain for n in onnx.load(mixed.program(name), load_external_data=False).graph.node}
        for name in ("target", "draft")
    }
    assert domains == {"target": {""}, "draft": {"", "com.microsoft"}}
    decoders = (Decoder.load(b.path) for b in (mixed, export_pair(LLAMA)[2]))
    answers = [decoder.complete("print(", max_new_tokens=24, block_size=8) for decoder in decoders]
    assert answers[0].token_ids == answers[1].token_ids


def test_a_reduced_draft_vocabulary_drafts_only_its_tokens_and_changes_no_output(
    export_pair: ExportPair, tmp_path: Path
) -> None:
    full = export_pair(LLAMA)[2]
    allowed = list(range(40, 120))
    asked = request(tmp_path, draft_vocab=80)
    (Path(asked.drafter) / "token_counts.json").write_text(json.dumps({"token_ids": allowed}))
    reduced = export(asked)
    assert reduced.manifest.draft_vocab_size == 80
    decoder, wanted = Decoder.load(reduced.path), Decoder.load(full.path)
    answer = decoder.complete("lists:", max_new_tokens=32, stop_token_ids=(), block_size=8)
    assert answer.token_ids == wanted.complete("lists:", max_new_tokens=32, stop_token_ids=(), block_size=8).token_ids
    engine = decoder.engine
    engine.finish_prefill(0, [5, 6, 7], 0)
    engine.place(0, anchor=8, start=3, limit=100)
    engine.launch(8)
    assert set(engine.collect().block[0, 1:].tolist()) <= set(allowed)


def test_the_pytorch_backend_writes_the_same(export_pair: ExportPair) -> None:
    bundle = export_pair(LLAMA)[2]
    compiled, oracle = Decoder.load(bundle.path), Decoder.load(bundle.path, backend="pytorch")
    for block_size in (1, 5, 8):
        a, b = (d.complete("for i in", max_new_tokens=20, block_size=block_size) for d in (compiled, oracle))
        assert a.token_ids == b.token_ids
        assert a.acceptance_lengths == b.acceptance_lengths


def test_the_pytorch_backend_refuses_other_checkpoints(export_pair: ExportPair, tmp_path: Path) -> None:
    bundle = export_pair(LLAMA)[2]
    other, _ = write_pair(PairCase(name="other", tied=True), tmp_path)
    manifest = json.loads((bundle.path / "bundle.json").read_text())
    manifest["target"]["id"] = str(other)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in bundle.path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(EngineError, match="not the checkpoint"):
        Decoder.load(copy, backend="pytorch")


def test_the_command_prints_json_and_ends_bad_input_in_one_line(tmp_path: Path) -> None:
    asked = request(tmp_path)
    arguments = [asked.target, asked.drafter, str(asked.out), "--max-len", "96", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["parity"]["target"]["argmax_agreement"] == 1.0
    assert Bundle.open(summary["bundle"]).manifest.limits.max_len == 96
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, CheckpointError)
    wrong = CliRunner().invoke(app, [*arguments[:3], "--block-sizes", "four"])
    assert wrong.exit_code == 2
    assert "four" in wrong.output


def test_parity_reports_how_far_off_a_program_is() -> None:
    gate = parity.GATES["fp32", "target"]
    bad = Parity(largest_difference=np.inf, argmax_agreement=1.0, rows=1)
    with pytest.raises(CheckpointError, match="off by up to inf"):
        parity._pass("target", bad, gate)


def test_hidden_output_is_transformers_hidden_states(tmp_path: Path) -> None:
    bundle = export(request(tmp_path, hidden_output=True))
    model = AutoModelForCausalLM.from_pretrained(bundle.manifest.target.id, dtype=float32).eval()
    tokens = list(range(5, 29))
    with no_grad():
        states = model(tensor([tokens]), output_hidden_states=True).hidden_states
    wanted = np.concatenate([states[i + 1].numpy() for i in bundle.manifest.target_layer_ids], -1)
    runner = golden.Runner(
        OnnxRuntimePrograms(bundle, Options()), declared_programs(bundle.manifest), bundle.manifest.limits
    )
    chunks = [runner.run(call)["hidden"] for call in parity.target_calls(tokens, chunk=10)]
    np.testing.assert_allclose(np.concatenate(chunks, 1), wanted, rtol=1e-4, atol=1e-4)


def test_weights_are_stored_once(export_pair: ExportPair) -> None:
    """A tied head, and an embedding that two programs read, cost their bytes once (in fp32)."""
    for case in (PairCase(name="tied", tied=True), LLAMA):
        target, drafter, bundle = export_pair(case)
        checkpoints = sum((folder / "model.safetensors").stat().st_size for folder in (target, drafter))
        # The context's key and value projections stand in both programs, merged with other neighbours in each.
        geometry = bundle.manifest.geometry
        twice = sum(2 * 4 * c.kv_heads * c.head_dim * geometry.hidden_size for c in geometry.draft_caches)
        padding = 4096 * 60  # tensors start at whole pages
        assert bundle.manifest.files["weights.bin"].bytes <= checkpoints + twice + padding


def test_programs_run_at_every_row_count(export_pair: ExportPair) -> None:
    """Sizes of the traced example must not have become constants."""
    bundle = export_pair(LLAMA)[2]
    runner = golden.Runner(OnnxRuntimePrograms(bundle, Options()), declared_programs(bundle.manifest),
                           Limits(max_len=64, prefill_chunk=40, block_sizes=(8,)))  # fmt: skip
    tokens = list(range(4, 44))
    whole = runner.run(parity.target_calls(tokens, chunk=40)[0])["logits"][0]
    for chunk in (2, 3, 5, 8, 17):
        parts = [runner.run(call)["logits"][0] for call in parity.target_calls(tokens, chunk)]
        rows = [part for part in parts if len(part) > 1]  # one row alone takes another numerical path
        np.testing.assert_array_equal(np.concatenate(rows), whole[: sum(map(len, rows))])
