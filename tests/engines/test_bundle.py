import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.errors import BundleError
from tests.engines.scripted_bundle import manifest, write_manifest


def rewrite(folder: Path, **fields: object) -> None:
    file = folder / "bundle.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_whole_bundle_opens(folder: Path) -> None:
    bundle = Bundle.open(folder)
    assert bundle.manifest.block_size == 6
    assert bundle.program("draft") == folder / "draft.onnx"
    assert bundle.file("tokenizer.json").is_file()


def test_a_bundle_may_be_moved(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    assert Bundle.open(moved).path == moved


def test_a_relative_path_does_not_depend_on_the_later_working_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    bundle = Bundle.open(folder.name)
    monkeypatch.chdir(tmp_path)
    assert bundle.file("target.onnx").is_file()


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "no such folder"),
    "no manifest": (lambda f: (f / "bundle.json").unlink(), r"has no bundle\.json.*didn't finish"),
    "empty manifest": (lambda f: (f / "bundle.json").write_text(""), "not valid JSON"),
    "binary manifest": (lambda f: (f / "bundle.json").write_bytes(b"\xff\xfe\x00"), "not valid JSON"),
    "a manifest nested too deeply": (lambda f: (f / "bundle.json").write_text("[" * 100_000), "not valid JSON"),
    "another program's JSON": (lambda f: (f / "bundle.json").write_text("[1]"), "no schema_version"),
    "a version that is no number": (lambda f: rewrite(f, schema_version="1"), "no schema_version"),
    "older": (lambda f: rewrite(f, schema_version=0), "older.*export the pair again"),
    "newer": (lambda f: rewrite(f, schema_version=2), "newer.*upgrade"),
    "an unknown field": (lambda f: rewrite(f, surprise=1), "surprise"),
    "an impossible limit": (lambda f: rewrite(f, limits={"max_len": 0}), "max_len"),
    "a mask beyond the vocabulary": (lambda f: rewrite(f, mask_token_id=260), r"mask_token_id: .*260.*0\.\.259"),
    "a negative stop": (lambda f: rewrite(f, stop_token_ids=[3, -1]), r"stop_token_ids: .*-1.*0\.\.259"),
    "a block without drafts": (lambda f: rewrite(f, block_size=1), "block_size: 1 leaves no token to draft"),
    "limits beyond the block": (lambda f: rewrite(f, block_size=5), "block_size: the limits allow blocks of 6"),
    "an unknown precision": (lambda f: rewrite(f, precision="fp7"), "precision: .*'fp32'"),
    "a missing file": (lambda f: (f / "draft.onnx").unlink(), r"draft\.onnx is missing"),
    "a truncated file": (
        lambda f: truncate(f / "weights.bin"),
        r"weights\.bin: 87 bytes where 88 were written",
    ),
    "a changed file": (lambda f: flip_a_bit(f / "target.onnx"), r"target\.onnx: its SHA-256"),
    "a program that is not listed": (
        lambda f: rewrite(f, programs={"target": "other.onnx"}),
        r"'target' is in 'other\.onnx', which is not listed",
    ),
    "a path out of the bundle": (
        lambda f: rewrite(f, files={"../secret": {"sha256": "", "bytes": 1}}),
        "outside the bundle",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_clear_error(folder: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    spoil(folder)
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.open(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_required_field_is_named(folder: Path) -> None:
    fields = manifest()
    del fields["mask_token_id"]
    write_manifest(folder, fields)
    with pytest.raises(BundleError, match="mask_token_id: Field required"):
        Bundle.open(folder)


def test_an_unlisted_file_is_never_handed_out(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 1 }}")
    bundle = Bundle.open(folder)
    assert not bundle.has("chat_template.jinja")
    with pytest.raises(BundleError, match=r"chat_template\.jinja"):
        bundle.file("chat_template.jinja")


def test_a_program_that_the_bundle_lacks_is_named(folder: Path) -> None:
    with pytest.raises(BundleError, match="no program 'accept_sampling'"):
        Bundle.open(folder).program("accept_sampling")
