"""Golden cases run at the first load on a machine, and again whenever anything that they hold for has changed."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.cache_folder import cache_folder
from dflash_engines.errors import EngineError
from dflash_engines.proofs import Proof, Setting, prove

PROOF = Proof(largest_deviation=0.25, seconds=1.5)


@pytest.fixture
def setting(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path / "cache"))
    return Setting(bundle=bundle, backend="onnxruntime", version="1.32", device="a processor")


def never() -> Proof:
    raise AssertionError("the cases ran again")


def test_cases_run_once(setting: Setting) -> None:
    assert prove(setting, lambda: PROOF) == PROOF
    assert prove(setting, never) == PROOF


def test_they_run_again_elsewhere(setting: Setting) -> None:
    prove(setting, lambda: PROOF)
    others = replace(setting, version="1.33"), replace(setting, device="another"), replace(setting, backend="pytorch")
    for other in others:
        with pytest.raises(AssertionError):
            prove(other, never)


def test_they_run_again_for_another_program(setting: Setting) -> None:
    prove(setting, lambda: PROOF)
    files = dict(setting.bundle.manifest.files)
    files["draft.onnx"] = files["draft.onnx"].model_copy(update={"sha256": "another"})
    other = replace(setting.bundle, manifest=setting.bundle.manifest.model_copy(update={"files": files}))
    with pytest.raises(AssertionError):
        prove(replace(setting, bundle=other), never)


def test_a_failure_is_not_remembered(setting: Setting) -> None:
    def fail() -> Proof:
        raise EngineError("golden case 3 (target): columns is off by 9, allowed 1")

    for _ in range(2):
        with pytest.raises(EngineError, match="golden case 3"):
            prove(setting, fail)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"seconds": 1}', b"\xff"])
def test_a_damaged_record_is_no_proof(setting: Setting, content: bytes) -> None:
    prove(setting, lambda: PROOF)
    (record,) = (cache_folder() / "proofs").iterdir()
    record.write_bytes(content)
    assert prove(setting, lambda: replace(PROOF, seconds=3.0)).seconds == 3.0


def test_a_cache_that_can_t_be_written_costs_no_load(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_CACHE_DIR", "/proc/nowhere")
    assert prove(setting, lambda: PROOF) == PROOF
