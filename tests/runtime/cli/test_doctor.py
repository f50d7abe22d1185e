"""The command over a scripted pair: forms of the report, and exit codes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_engines.finding import Finding, fault, ok, skipped, warning
from dflash_runtime.cli.doctor import ILL, main
from dflash_runtime.doctor import examination
from dflash_runtime.doctor.patient import Patient
from tests.engines.scripted_bundle import write_bundle

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("doctor") / "pair", max_len=1100)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(examination, "load_oracle", lambda bundle: (None, "no PyTorch in this test"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dflash-doctor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_the_whole_battery(run: Run, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "doctor.html"
    code, out, _ = run(str(folder), "--count", "2", "--max-new-tokens", "24", "--json", "--html", str(page))
    found = json.loads(out)
    checks = {finding["check"]: finding["verdict"] for finding in found["findings"]}
    assert code == 0 and found["verdict"] in ("ok", "warning")
    assert checks["lossless"] == checks["updates in place"] == checks["files"] == "ok"
    assert checks["drift of the target"] == checks["CUDA graphs"] == "skipped"
    html = page.read_text()
    assert "does drafting pay" in html and html.count("<svg") >= 2 and "src=" not in html


@pytest.mark.parametrize(
    ("finding", "strict", "code"),
    [
        (ok("a", "well"), True, 0),
        (skipped("a", "no"), True, 0),
        (warning("a", "meh", "do this"), False, 0),
        (warning("a", "meh", "do this"), True, ILL),
        (fault("a", "bad", "do this"), False, ILL),
    ],
)
def test_exit_codes(
    finding: Finding, strict: bool, code: int, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(patient: Patient) -> list[Finding]:
        return [finding]

    monkeypatch.setattr(examination, "CHECKS", {"a": check})
    found, out, _ = run(str(folder), *(["--strict"] if strict else []))
    assert found == code
    assert finding.found in out and (not finding.fix or f"-> {finding.fix}" in out)


def test_a_folder_that_is_not_there_is_bad_input(run: Run, tmp_path: Path) -> None:
    code, _, err = run(str(tmp_path / "none"))
    assert code == 2 and "no such folder" in err


def test_a_folder_that_is_no_bundle_is_a_finding(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(str(tmp_path))
    assert code == ILL and "FAULT" in out and "bundle.json" in out
