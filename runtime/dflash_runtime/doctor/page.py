"""An examination as a page. Needs matplotlib."""

from dflash_engines.finding import Finding
from dflash_runtime.doctor.examination import Examination
from dflash_runtime.doctor.report import summary
from dflash_runtime.reports import charts
from dflash_runtime.reports.page import Page, Section, Table


def page(examination: Examination) -> Page:
    """The findings as a table, their curves as drawings."""
    here = examination.about
    rows = [(f.verdict.value, f.check, f.found, f.fix) for f in examination.findings]
    versions = ", ".join(f"{k} {v}" for k, v in here.versions.items())
    made = [("command", here.command), ("date", here.date), ("machine", here.machine), ("versions", versions)]
    return Page(
        title=f"dflash-doctor: {examination.subject}",
        sections=[
            Section(
                heading=f"Verdict: {examination.verdict}",
                text=[summary(examination)],
                tables=[Table(headings=("verdict", "check", "found", "what to do"), rows=rows)],
            ),
            *(_drawn(finding) for finding in examination.findings if finding.curves),
            Section(heading="How this was made", tables=[Table(headings=("", ""), rows=made)]),
        ],
    )


def _drawn(finding: Finding) -> Section:
    labels = {"acceptance": "position in the block", "context length": "prompt tokens"}
    drawing = charts.lines(finding.check, labels.get(finding.check, "block size"), "", finding.curves)
    return Section(heading=finding.check, drawings=[drawing])
