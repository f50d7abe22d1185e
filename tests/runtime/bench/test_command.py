"""The command over a scripted pair: every mode, every form of report."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_runtime.bench.plan import MODES
from dflash_runtime.cli.bench import main
from tests.engines.scripted_bundle import write_bundle

Run = Callable[..., tuple[int, str, str]]
EVERYTHING = [word for mode in MODES for word in ("--mode", mode)]
SMALL = ["--preset", "quick", "--set", "mt_bench", "--new-tokens", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bench") / "pair", max_len=1100)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dflash-bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_every_mode_and_form(run: Run, folder: Path, tmp_path: Path) -> None:
    code, out, err = run(str(folder), *SMALL, *EVERYTHING, "--out", str(tmp_path / "report"))
    assert code == 0
    for heading in ("speed", "acceptance", "latency", "by requests together", "by prompt tokens", "by block size"):
        assert f"## pair: {heading}" in out
    assert "minutes in all" in err
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count("<svg") >= 5 and "src=" not in page and "<link" not in page
    assert (tmp_path / "report" / "report.md").read_text().strip() == out.strip()
    found = json.loads((tmp_path / "report" / "report.json").read_text())
    (bundle,) = found["bundles"]
    assert bundle["lossless"] and set(found["about"]) >= {"command", "date", "machine", "versions"}
    assert bundle["sets"][0]["acceptance"]["by_position"]
    assert [point["value"] for point in bundle["context"]] == [256, 512, 1024]


def test_json_only(run: Run, folder: Path) -> None:
    code, out, _ = run(str(folder), *SMALL, "--json")
    assert code == 0 and json.loads(out)["bundles"][0]["name"] == "pair"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--mode", "sideways"], "sideways"),
        (["--set", "gsm9k"], "gsm9k"),
        (["--peer", "nobody"], "nobody"),
        (["--new-tokens", "1099"], "leaves room"),
    ],
)
def test_bad_input_is_one_line(run: Run, folder: Path, arguments: list[str], word: str) -> None:
    code, _, err = run(str(folder), *SMALL, *arguments)
    assert code == 2 and word in err and "Traceback" not in err
