"""The drawings of a benchmark's page. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dflash_runtime.bench.report import SWEEPS
from dflash_runtime.bench.results import BenchResult, BundleResult
from dflash_runtime.bench.sweeps import Point
from dflash_runtime.bench.system import PLAIN
from dflash_runtime.reports import charts
from dflash_runtime.reports.page import Page, Section


def with_drawings(page: Page, result: BenchResult) -> Page:
    """The page with a drawing in each section that has one."""
    drawn = {heading: svg for bundle in result.bundles for heading, svg in _of(bundle).items()}
    sections = [replace(s, drawings=[drawn[s.heading]]) if s.heading in drawn else s for s in page.sections]
    return Page(title=page.title, sections=[*sections, *_time(result)])


def _of(bundle: BundleResult) -> Mapping[str, str]:
    name, found = bundle.name, dict[str, str]()
    if bundle.sets:
        found[f"{name}: speed"] = _speed(bundle)
        found[f"{name}: acceptance"] = charts.lines(
            "acceptance by position", "position in the block", "share of passes that keep it",
            {s.set_name: list(enumerate(s.acceptance.by_position, 1)) for s in bundle.sets},
        )  # fmt: skip
    for kind, label in SWEEPS.items():
        points: Sequence[Point] = getattr(bundle, kind)
        if points:
            ratios = [(float(p.value), p.ratio) for p in points if p.ratio is not None]
            lengths = [(float(p.value), p.acceptance_length) for p in points]
            series = {"speed over plain": ratios, "acceptance length": lengths}
            found[f"{name}: by {label}"] = charts.lines(f"by {label}", label, "", series)
    return found


def _speed(bundle: BundleResult) -> str:
    groups = {
        found.set_name: {
            s.system: s.over_plain.median for s in found.systems if s.over_plain is not None and s.system != PLAIN
        }
        for found in bundle.sets
    }
    return charts.bars("speed over plain decoding", "ratio", groups, level=1.0)


def _time(result: BenchResult) -> list[Section]:
    """Where the time of answers with the drafter went, bundles side by side."""
    shares = {}
    for bundle in (b for b in result.bundles if b.sets):
        seconds = {part: sum(s.seconds[part] for s in bundle.sets) for part in bundle.sets[0].seconds}
        shares[bundle.name] = {part: value / sum(seconds.values()) for part, value in seconds.items()}
    if not shares:
        return []
    drawing = charts.stacks("where the time went, with the drafter", "share", shares)
    return [Section(heading="Time split", drawings=[drawing])]
