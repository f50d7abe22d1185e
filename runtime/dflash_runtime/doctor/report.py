"""An examination as text for a terminal."""

from collections import Counter

from dflash_runtime.doctor.examination import Examination


def as_text(examination: Examination) -> str:
    """One line a finding, and what to do below those that ask for it."""
    lines = [examination.subject, ""]
    for finding in examination.findings:
        lines.append(f"{finding.verdict.upper():<8} {finding.check}: {finding.found}")
        if finding.fix:
            lines.append(f"{'':<8} -> {finding.fix}")
    return "\n".join([*lines, "", summary(examination)])


def summary(examination: Examination) -> str:
    """How many of each verdict."""
    counts = Counter(finding.verdict for finding in examination.findings)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
