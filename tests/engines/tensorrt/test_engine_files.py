"""Engines are code: nothing is loaded that the sidecar and the manifest don't both vouch for."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.errors import BundleError, DflashError, EngineError
from dflash_engines.tensorrt.engine_files import (
    EngineRecord,
    Sidecar,
    check_machine,
    check_programs,
    engine_name,
    read_plans,
    read_sidecar,
    sidecar_name,
)
from dflash_engines.tensorrt.library import TensorRtBackend
from tests.engines.scripted_bundle import write_bundle

BACKEND: TensorRtBackend = "tensorrt-rtx"
CONTENTS = {
    engine_name(BACKEND, "target", "grouped"): b"plan of the target",
    engine_name(BACKEND, "draft", "grouped"): b"plan of the draft",
    engine_name(BACKEND, "accept", None): b"plan of accept",
}


def record(file: str) -> EngineRecord:
    attends = "grouped" in file
    return EngineRecord(
        file=file, program=file.split(".")[1], attention="grouped" if attends else None, bytes=len(CONTENTS[file]),
        weight_bytes=0, seconds=1.0, host_bytes=1, attentions=int(attends), cache_updates=2, plugins=0,
        decomposable=False,
    )  # fmt: skip


def relist(folder: Path) -> None:
    """Let bundle.json list what lies in the folder, as a build does."""
    manifest = json.loads((folder / "bundle.json").read_text())
    for path in folder.iterdir():
        if path.name != "bundle.json":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            manifest["files"][path.name] = {"sha256": digest, "bytes": path.stat().st_size}
    (folder / "bundle.json").write_text(json.dumps(manifest))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle with engines of the wrong content but the right description."""
    folder = write_bundle(tmp_path / "bundle")
    manifest = Bundle.open(folder).manifest
    sidecar = Sidecar(
        schema_version=1, backend=BACKEND, version="1.7.1.116", compute_capabilities=("8.9", "12.0"),
        program_sha256={program: manifest.files[file].sha256 for program, file in manifest.programs.items()},
        weights_sha256=manifest.files["weights.bin"].sha256, precision="fp16", draft_precision="fp16",
        limits=manifest.limits, engines=tuple(map(record, CONTENTS)),
    )  # fmt: skip
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    (folder / sidecar_name(BACKEND)).write_text(sidecar.model_dump_json())
    relist(folder)
    return folder


def edit(folder: Path, **fields: object) -> None:
    file = folder / sidecar_name(BACKEND)
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    relist(folder)


def load(folder: Path) -> dict[str, bytes]:
    """What a backend does before it hands anything to TensorRT, on a GPU of compute capability 8.9."""
    bundle = Bundle.open(folder)
    sidecar = read_sidecar(bundle, BACKEND)
    check_programs(bundle, sidecar)
    check_machine(bundle, sidecar, "1.7.1.116", "8.9")
    return dict(read_plans(bundle, sidecar, "grouped"))


def test_engines_are_handed_out_by_program(folder: Path) -> None:
    assert load(folder) == {record(name).program: content for name, content in CONTENTS.items()}


TARGET, DRAFT, *_ = CONTENTS


def swap(folder: Path) -> None:
    first, second = (folder / TARGET).read_bytes(), (folder / DRAFT).read_bytes()
    (folder / TARGET).write_bytes(second)
    (folder / DRAFT).write_bytes(first)


def unlist(folder: Path) -> None:
    manifest = json.loads((folder / "bundle.json").read_text())
    del manifest["files"][TARGET]
    (folder / "bundle.json").write_text(json.dumps(manifest))


def change_program(folder: Path) -> None:
    """As an export over an old bundle would."""
    (folder / "draft.onnx").write_bytes((folder / "draft.onnx").read_bytes() + b"\0")
    relist(folder)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no engines": (lambda f: edit_manifest_without_sidecar(f), "holds no engines.*dflash-export build .*tensorrt-rtx"),
    "truncated": (lambda f: (f / TARGET).write_bytes(b"plan"), "4 bytes where"),
    "changed": (lambda f: (f / TARGET).write_bytes(b"plan of the tarGet"), "SHA-256"),
    "swapped": (swap, "SHA-256|bytes where"),
    "unlisted": (unlist, "is not one of the bundle's files, so it is not loaded.*dflash-export build"),
    "stale": (change_program, "'draft' was built from another program; dflash-export build"),
    "other weights": (lambda f: edit(f, weights_sha256="0"), "built from other weights"),
    "damaged sidecar": (lambda f: edit(f, engines=[{}]), "engines.0.file: Field required"),
    "sidecar of another backend": (lambda f: edit(f, backend="tensorrt"), "for another backend"),
    "sidecar of a later release": (lambda f: edit(f, schema_version=2), "another release"),
    "impossible limits": (lambda f: edit(f, limits={"max_len": 0}), "max_len"),
    "another version": (
        lambda f: edit(f, version="1.6.0.1"),
        r"built with tensorrt-rtx 1\.6\.0\.1 .*8\.9, 12\.0, and this is tensorrt-rtx 1\.7\.1\.116 on 8\.9; "
        r"dflash-export build .* --compute-capability 8\.9,12\.0",
    ),
    "another GPU": (
        lambda f: edit(f, compute_capabilities=["8.0"]),
        r"for compute capability 8\.0, and this is .* on 8\.9; dflash-export build .* --compute-capability 8\.9$",
    ),
}


def edit_manifest_without_sidecar(folder: Path) -> None:
    manifest = json.loads((folder / "bundle.json").read_text())
    del manifest["files"][sidecar_name(BACKEND)]
    (folder / "bundle.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_sentence_with_the_way_out(folder: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    spoil(folder)
    with pytest.raises(DflashError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_file_that_changes_after_the_bundle_was_opened_is_not_loaded(folder: Path) -> None:
    bundle = Bundle.open(folder)
    sidecar = read_sidecar(bundle, BACKEND)
    (folder / TARGET).write_bytes(b"something else....")
    with pytest.raises(EngineError, match="is not the engine that was built; dflash-export build"):
        read_plans(bundle, sidecar, "grouped")


def test_a_file_that_disappears_is_named(folder: Path) -> None:
    bundle = Bundle.open(folder)
    sidecar = read_sidecar(bundle, BACKEND)
    (folder / TARGET).unlink()
    with pytest.raises((EngineError, BundleError), match=TARGET):
        read_plans(bundle, sidecar, "grouped")
