"""What an examination of a pair or a bundle found: one line each, with a verdict and what to do about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it runs right, but worse than it could
    FAULT = "fault"
    SKIPPED = "skipped"  # it could not be looked at here


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line. `curves` are (x, y) points by name, for drawings."""

    check: str
    verdict: Verdict
    found: str
    fix: str = ""
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


def ok(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check=check, verdict=Verdict.OK, found=found)


def warning(check: str, found: str, fix: str) -> Finding:
    """Worse than it could be."""
    return Finding(check=check, verdict=Verdict.WARNING, found=found, fix=fix)


def fault(check: str, found: str, fix: str) -> Finding:
    """Wrong."""
    return Finding(check=check, verdict=Verdict.FAULT, found=found, fix=fix)


def skipped(check: str, why: str) -> Finding:
    """Not looked at."""
    return Finding(check=check, verdict=Verdict.SKIPPED, found=why)
