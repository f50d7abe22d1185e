"""The oldest transformers that pyproject.toml allows, laid over the installed one; it names the cache otherwise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BUILD, ROOT


@pytest.mark.slow
def test_targets_trace_with_the_oldest_transformers() -> None:
    oldest = re.search(r'"transformers>=([\d.]+),', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert oldest is not None
    overlay = BUILD / f"transformers-{oldest[1]}"
    if not overlay.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(overlay)]
        subprocess.run([*pip, f"transformers=={oldest[1]}.0"], check=True)
    tests = [str(Path(__file__).with_name("test_target.py")), str(Path(__file__).with_name("test_drafts.py"))]
    probe = "import transformers, pytest, sys; print(transformers.__version__); sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", probe, "-q", "-p", "no:cacheprovider", "-k", "not tiny_pair", *tests],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(overlay)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith(oldest[1]), done.stdout
    assert done.returncode == 0, done.stdout[-4000:]
