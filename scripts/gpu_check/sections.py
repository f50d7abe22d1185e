"""Runs sections one after the other, each in a process of its own, and keeps what each found."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

Result = dict[str, Any]
BUDGET = 230.0  # seconds for all sections together


class SkippedSectionError(Exception):
    """A section can't run here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the check. `patience` is in seconds."""

    name: str
    run: Callable[[bool], Result]  # told whether it is a rehearsal
    patience: float


def run_here(section: Section, rehearse: bool) -> Result:
    """The section's result, or why there is none."""
    begin = monotonic()
    try:
        found = section.run(rehearse)
    except SkippedSectionError as e:
        return {"skipped": str(e)}
    except Exception as e:  # noqa: BLE001, whatever goes wrong here is a finding, and the others go on
        return {"failed": f"{type(e).__name__}: {e}"}
    return found | {"section_seconds": round(monotonic() - begin, 2)}


def run_in_children(names: Sequence[tuple[str, float]], out: Path, command: Callable[[str], list[str]]) -> Result:
    """Every section's result by name; written to `out` as soon as it is known. `names` come with their patience."""
    results: Result = {}
    end = monotonic() + BUDGET
    for name, patience in names:
        left = min(patience, end - monotonic())
        results[name] = _child(command(name), left) if left > 1 else {"skipped": "no time was left for it"}
        out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


def _child(command: list[str], patience: float) -> Result:
    """A child prints its result as the last line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"did not end within {patience:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        told = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"failed": f"its process ended with {done.returncode}: {told}"}
    found: Result = json.loads(lines[-1])
    return found


def child_command(name: str, rehearse: bool) -> list[str]:
    """The command that runs one section and prints its result."""
    return [sys.executable, "-m", "scripts.gpu_check", "--section", name, *(["--rehearse"] if rehearse else [])]
