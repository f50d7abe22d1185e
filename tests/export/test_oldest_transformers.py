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
    environment = {**os.environ, "PYTHONPATH": str(overlay)}
    probe = [sys.executable, "-c", "import transformers; print(transformers.__version__)"]
    found = subprocess.run(probe, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.startswith(oldest[1])
    tests = [str(Path(__file__).with_name(name)) for name in ("test_target.py", "test_drafts.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
