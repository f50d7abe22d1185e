"""gpu_check on the CPU: its sections as a rehearsal, and what becomes of one that fails, crashes or hangs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_check import lossless, speed
from scripts.gpu_check.report import lines
from scripts.gpu_check.sections import Section, SkippedSectionError, child_command, run_here, run_in_children
from scripts.gpu_check.synthetic import QWEN3_8B
from tests.engines import scripted_pair


def skipped(rehearse: bool) -> dict[str, Any]:
    raise SkippedSectionError("needs a GPU")


def failing(rehearse: bool) -> dict[str, Any]:
    raise ValueError("seven")


@pytest.mark.parametrize(
    ("run", "wanted"), [(skipped, {"skipped": "needs a GPU"}), (failing, {"failed": "ValueError: seven"})]
)
def test_a_section_without_a_result_says_why(run: Callable[[bool], dict[str, Any]], wanted: dict[str, str]) -> None:
    assert run_here(Section(name="one", run=run, patience=1), rehearse=True) == wanted


CHILDREN = {
    "fine": "print('noise'); print('{\"answer\": 42}')",
    "crashes": "import os, sys; sys.stderr.write('illegal address'); sys.stderr.flush(); os._exit(70)",
    "hangs": "import time; time.sleep(60)",
    "after": "print('{\"answer\": 43}')",
}


def test_one_section_that_crashes_or_hangs_does_not_stop_the_others(tmp_path: Path) -> None:
    out = tmp_path / "gpu_check.json"
    names = [(name, 2.0 if name == "hangs" else 60.0) for name in CHILDREN]
    results = run_in_children(names, out, lambda name: [sys.executable, "-c", CHILDREN[name]])
    assert json.loads(out.read_text()) == results
    assert results == {
        "fine": {"answer": 42},
        "crashes": {"failed": "its process ended with 70: illegal address"},
        "hangs": {"failed": "did not end within 2 s"},
        "after": {"answer": 43},
    }


def test_every_section_is_a_process_of_its_own() -> None:
    assert child_command("speed", rehearse=True)[1:] == ["-m", "scripts.gpu_check", "--section", "speed", "--rehearse"]


def test_the_runtime_is_lossless_with_and_without_graphs_and_run_ahead() -> None:
    found = lossless.runtime(rehearse=True)
    assert [way["lossless"] for way in found.values()] == [True] * 4
    assert found["graphs, run-ahead"]["replays"] > 0 == found["neither"]["replays"]


def test_the_carried_loop_is_the_tests_own() -> None:
    from scripts.gpu_check.scripted import SCRIPT, plain_tokens

    assert SCRIPT == scripted_pair.SCRIPT
    assert plain_tokens([5, 6, 7], 40) == scripted_pair.plain_tokens([5, 6, 7], 40)


def test_a_rehearsal_of_the_synthetic_pair_times_every_part() -> None:
    found = speed.speed(rehearse=True)
    assert list(found["programs"]) == ["target S=1", "target S=4", "draft K=4"]
    parts = [*found["programs"].values(), found["iteration"]]
    assert all(part["seconds"] > 0 and part["bytes"] > 0 and part["of_bandwidth"] > 0 for part in parts)
    assert found["without_graphs"]["replays"] == 0 < found["without_run_ahead"]["replays"]
    table = "\n".join(lines({"speed": found}))
    assert "of bandwidth" in table and "draft K=4" in table


def test_the_large_pair_has_the_size_it_is_named_after() -> None:
    size = QWEN3_8B
    layer = size.hidden * (size.heads + 2 * size.kv_heads) * size.head_dim + size.heads * size.head_dim * size.hidden
    layer += 3 * size.hidden * size.intermediate
    assert round((layer * size.layers + 2 * size.vocab * size.hidden) / 1e8) == 82  # 8.2 billion
    assert size.geometry.cache_dtype == "bfloat16"
    assert (size.max_len + 2 * size.block) % 8 == 0


@pytest.mark.slow
def test_the_tiny_pair_answers_as_the_cpu_did() -> None:
    found = lossless.tiny_pair(rehearse=True)
    assert found["golden_deviation"] < 1e-3
    assert found["drafted_equal_the_cpus"] == found["plain_equal_the_cpus"] == found["answers"] == 12
