"""dflash-serve as a user starts it."""

import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np
import pytest

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.golden import FILE, Call, Golden, Runner, digest
from dflash_engines.host_engine import declared_programs
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_runtime.cli.serve import main
from tests.engines.scripted_bundle import manifest, write_bundle, write_manifest
from tests.engines.scripted_pair import plain_tokens
from tests.runtime.serving.http.conftest import until

PROMPT = [5, 6, 7]
Ending = Callable[..., tuple[int, str]]


@contextmanager
def started(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    code = "from dflash_runtime.cli.serve import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def with_golden_cases(folder: Path, *, spoilt: bool = False) -> Path:
    """A bundle whose golden cases are one draft, with its true result or another."""
    bundle = Bundle.open(write_bundle(folder))
    runner = Runner(OnnxRuntimePrograms(bundle, Options()), declared_programs(bundle.manifest), bundle.manifest.limits)
    inputs = {"tokens": np.array([[5, 2, 2, 2]]), "start": np.array([0]), "length": np.array([4])}
    call = Call(program="draft", first_slot=0, inputs=inputs)
    result = digest(runner.run(call))
    if spoilt:
        result |= {"confidence": result["confidence"] + 1}
    Golden(calls=(call,), results=(result,), tolerance=0.1).save(folder / FILE)
    write_manifest(folder, manifest())
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_golden_cases(tmp_path_factory.mktemp("served"))


def test_a_bundle_is_served_until_sigterm(folder: Path) -> None:
    with started(str(folder), "--port", "0", "--model", "scripted", "--slots", "2", "--threads", "1") as process:
        assert process.stderr is not None
        port = json.loads(process.stderr.readline())["port"]
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
            until(lambda: http.get("/ready").status_code == 200)
            body = {"model": "scripted", "prompt": PROMPT, "temperature": 0, "max_tokens": 5, "stop_token_ids": [0]}
            answer = http.post("/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert len(plain_tokens(PROMPT, 5)) == 5
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
        assert process.wait(30) == 0
        assert "golden test passed" in log
        assert "Traceback" not in log


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Ending]:
    """Runs the command here: exit code, and what was written apart from the log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def end(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dflash-serve", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capfd.readouterr().err.splitlines()
        return int(ended.value.code or 0), "\n".join(line for line in written if not line.startswith("{"))

    yield end
    root.handlers[:], root.level = handlers, level


def test_a_bundle_that_is_not_there(tmp_path: Path, ending: Ending) -> None:
    code, error = ending(str(tmp_path / "nothing"), "--port", "0")
    assert code == 2
    assert "nothing" in error
    assert "Traceback" not in error


def test_an_engine_that_computes_something_else_is_never_ready(tmp_path: Path, ending: Ending) -> None:
    code, error = ending(str(with_golden_cases(tmp_path / "spoilt", spoilt=True)), "--port", "0")
    assert code == 1
    assert "golden case 0 (draft): confidence is off by 1" in error
    assert "Traceback" not in error


def test_a_bundle_without_golden_cases_is_not_served(tmp_path: Path, ending: Ending) -> None:
    code, error = ending(str(write_bundle(tmp_path / "bare")), "--port", "0")
    assert code == 2
    assert "golden.npz" in error


def test_a_port_that_is_taken(folder: Path, ending: Ending) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, error = ending(str(folder), "--port", str(taken.getsockname()[1]))
    assert code == 1
    assert "choose another --host or --port" in error


@pytest.mark.parametrize("arguments", [["--slots", "0"], ["--port", "70000"], ["--target-gap-ms", "0"]])
def test_options_that_make_no_sense(folder: Path, arguments: list[str], ending: Ending) -> None:
    assert ending(str(folder), *arguments)[0] == 2


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_package_that_is_missing_is_named_with_its_extra(folder: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from dflash_runtime.cli.serve import main; main()"
    command = [sys.executable, "-c", code, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"needs the package '{package}'" in ended.stderr
    assert "pip install 'dflash-trt[serve]'" in ended.stderr
