import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dflash_engines.backend import Buffers, Options
from dflash_engines.bundle import Bundle
from dflash_engines.errors import BundleError, ContractError, EngineError
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms, load
from tests.engines.scripted_bundle import MAX_LEN, manifest, write_manifest
from tests.engines.scripted_onnx import WEIGHTS_FILE
from tests.engines.scripted_pair import SCRIPT, plain_tokens


def first_token(bundle: Bundle, prompt: list[int]) -> int:
    return int(load(bundle, Options()).finish_prefill(0, prompt, 0).sampled[0, 0])


def save_program(folder: Path, model: onnx.ModelProto, name: str) -> Bundle:
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    write_manifest(folder, manifest())
    return Bundle.open(folder)


def loaded(folder: Path, name: str) -> onnx.ModelProto:
    return onnx.load(folder / f"{name}.onnx", load_external_data=False)


def test_a_bundle_runs_from_any_working_directory_and_after_a_move(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "a folder with spaces" / "bündel"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    monkeypatch.chdir("/")
    assert first_token(Bundle.open(moved), [5, 6, 7]) == plain_tokens([5, 6, 7], 1)[0]


def test_caches_are_updated_in_place(bundle: Bundle, capfd: pytest.CaptureFixture[str]) -> None:
    """The bound arrays change, and only in the rows of the call; ONNX Runtime warns when it copies a cache."""
    programs = OnnxRuntimePrograms(bundle, Options())
    caches = {f"{kind}_{part}_0": np.zeros((1, 1, 60, 1), np.float32)
              for kind in ("target", "draft") for part in ("key", "value")}  # fmt: skip
    inputs = {
        "tokens": np.array([[10, 11]]),
        "start": np.array([3]),
        "length": np.array([5]),
        "rows": np.array([[1]]),
        **caches,
    }
    outputs = {"logits": np.zeros((1, 1, 260), np.float32), **{f"new_{n}": c for n, c in caches.items()}}
    programs.bind("target", inputs, outputs)()
    for cache in caches.values():
        assert cache[0, 0, :6, 0].tolist() == [0, 0, 0, 11, 12, 0]
    assert capfd.readouterr().err == ""


def test_weights_beyond_two_gigabytes_are_mapped(folder: Path) -> None:
    """The whole program is larger than protobuf allows, and the script lies behind its first 2 GiB."""
    size = 2**31 + 4096
    with (folder / WEIGHTS_FILE).open("wb") as weights:
        weights.truncate(size)  # sparse: no disk is used
        weights.seek(size)
        weights.write(np.array(SCRIPT, np.int64).tobytes())
    for name in ("target", "draft"):
        model = loaded(folder, name)
        script = next(tensor for tensor in model.graph.initializer if tensor.name == "script")
        next(entry for entry in script.external_data if entry.key == "offset").value = str(size)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    opened = Bundle(path=folder, manifest=Bundle.open(refreshed(folder)).manifest)
    assert first_token(opened, [5, 6, 7]) == plain_tokens([5, 6, 7], 1)[0]


def refreshed(folder: Path) -> Path:
    """The same bundle without its huge file, which takes seconds to hash."""
    light = folder.parent / "light"
    shutil.copytree(folder, light, ignore=shutil.ignore_patterns(WEIGHTS_FILE))
    (light / WEIGHTS_FILE).touch()
    write_manifest(light, manifest())
    return light


def test_a_missing_binding_is_refused_by_name(folder: Path) -> None:
    model = loaded(folder, "target")
    del model.graph.output[1]  # new_target_key_0
    with pytest.raises(ContractError, match="target: output 'new_target_key_0' is missing"):
        load(save_program(folder, model, "target"), Options())


def test_an_undeclared_binding_is_refused_by_name(folder: Path) -> None:
    model = loaded(folder, "accept")
    model.graph.input.append(onnx.helper.make_tensor_value_info("luck", TensorProto.FLOAT, ["B"]))
    with pytest.raises(ContractError, match="accept: input 'luck' is not in the contract"):
        load(save_program(folder, model, "accept"), Options())


def test_a_binding_of_another_type_is_refused_by_name(folder: Path) -> None:
    model = loaded(folder, "draft")
    next(v for v in model.graph.input if v.name == "start").type.tensor_type.elem_type = TensorProto.INT32
    with pytest.raises(ContractError, match="draft: input 'start' is int32, the contract says int64"):
        load(save_program(folder, model, "draft"), Options())


def test_a_graph_that_onnxruntime_refuses_is_one_error(folder: Path) -> None:
    model = loaded(folder, "accept")
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(EngineError, match=r"can't load .*accept\.onnx"):
        load(save_program(folder, model, "accept"), Options())


@pytest.mark.parametrize("location", ["unlisted.bin", "../unlisted.bin", "/etc/hostname"])
def test_weights_in_a_file_that_the_bundle_does_not_list_are_refused(folder: Path, location: str) -> None:
    model = loaded(folder, "target")
    script = next(tensor for tensor in model.graph.initializer if tensor.name == "script")
    next(entry for entry in script.external_data if entry.key == "location").value = location
    with pytest.raises(BundleError, match=r"'script' lies in .*unlisted|hostname"):
        load(save_program(folder, model, "target"), Options())


def test_a_provider_that_is_not_there_is_an_error_that_names_what_is(bundle: Bundle) -> None:
    with pytest.raises(EngineError, match=r"no CUDAExecutionProvider here, only .*CPUExecutionProvider"):
        load(bundle, Options(provider="CUDAExecutionProvider"))


def test_a_max_len_beyond_the_bundles_is_refused(bundle: Bundle) -> None:
    with pytest.raises(EngineError, match=rf"max_len {MAX_LEN + 1} is not a whole number within 1\.\.{MAX_LEN}"):
        load(bundle, Options(max_len=MAX_LEN + 1))


def test_a_smaller_max_len_is_taken(bundle: Bundle) -> None:
    assert load(bundle, Options(max_len=20)).limits.max_len == 20


STRANGERS_SCRIPT = """
import sys
import onnxruntime
from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.onnxruntime_cpu import load

bundle = Bundle.open(sys.argv[1])
for threads in (2, 1, None):
    load(bundle, Options(threads=threads)).finish_prefill(0, [5, 6], 0)
onnxruntime.InferenceSession(bundle.program("accept"), providers=["CPUExecutionProvider"])
sys.stdout.write("both run")
"""


def output_of(script: str, bundle: Bundle) -> str:
    """What `script` prints in a process of its own."""
    command = [sys.executable, "-c", script, str(bundle.path)]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert found.stderr == ""
    return found.stdout


def test_other_sessions_of_the_process_are_left_alone(bundle: Bundle) -> None:
    """A process-wide pool would make every session that the application creates by itself fail."""
    assert output_of(STRANGERS_SCRIPT, bundle) == "both run"


FOREIGN_POOL_SCRIPT = """
import sys
import onnxruntime
from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.onnxruntime_cpu import load

onnxruntime.set_global_thread_pool_sizes(2, 1)
bundle = Bundle.open(sys.argv[1])
load(bundle, Options()).finish_prefill(0, [5, 6], 0)
sys.stdout.write("runs")
"""


def test_a_pool_that_other_code_made_is_used_as_it_is(bundle: Bundle) -> None:
    assert output_of(FOREIGN_POOL_SCRIPT, bundle) == "runs"


def test_no_thread_is_no_number_of_threads(bundle: Bundle) -> None:
    with pytest.raises(EngineError, match="threads must be a whole number of at least 1, not 0"):
        load(bundle, Options(threads=0))


def test_a_manifest_without_a_program_is_refused(folder: Path) -> None:
    fields = json.loads((folder / "bundle.json").read_text())
    del fields["programs"]["draft"]
    write_manifest(folder, {name: value for name, value in fields.items() if name != "files"})
    with pytest.raises(BundleError, match="no program 'draft'"):
        load(Bundle.open(folder), Options())


def test_a_run_that_onnxruntime_gives_up_is_an_engine_error(bundle: Bundle) -> None:
    """Two rows of logits for a block of three."""
    inputs: Buffers = {
        "logits": np.zeros((1, 2, 260), np.float32),
        "block": np.zeros((1, 3), np.int64),
        **{name: np.zeros(1, np.int64) for name in ("start", "forced", "count", "limit")},
    }
    outputs: Buffers = {
        "sampled": np.zeros((1, 2), np.int64),
        "accepted": np.zeros(1, np.int64),
        "next_tokens": np.zeros((1, 3), np.int64),
        "next_start": np.zeros(1, np.int64),
        "next_length": np.zeros(1, np.int64),
        "finite": np.zeros(1, np.bool_),
    }
    run = OnnxRuntimePrograms(bundle, Options()).bind("accept", inputs, outputs)
    with pytest.raises(EngineError, match="ONNX Runtime failed in 'accept'"):
        run()


def test_a_program_that_is_no_onnx_is_refused(folder: Path) -> None:
    (folder / "target.onnx").write_bytes(b"hello")
    write_manifest(folder, manifest())
    with pytest.raises(BundleError, match=r"target\.onnx is not an ONNX program"):
        load(Bundle.open(folder), Options())
