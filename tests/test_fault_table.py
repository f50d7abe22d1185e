"""The table of faults in docs/doctor.md: every row names tests that are there."""

import re

from tests.conftest import ROOT

ROW = re.compile(r"^\| (B\d\d) [^|]+\| ([^|]+)\| ([^|]+)\| ([^|]+) \|$", re.MULTILINE)
FAULTS = 48  # of groups A and B


def test_every_fault_has_a_row_and_every_named_test_is_there() -> None:
    rows = ROW.findall((ROOT / "docs" / "doctor.md").read_text(encoding="utf-8"))
    assert len({number for number, *_ in rows}) == len(rows) == FAULTS
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)", sources))
    for number, planted, _, tests in rows:
        named = [] if tests == "-" else tests.split(", ")
        assert named or "not planted" in planted or "needs a GPU" in planted, number
        assert not set(named) - there, number
