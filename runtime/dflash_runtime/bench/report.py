"""A benchmark's page: what was run, then every result as a table, and for HTML as drawings."""

from collections.abc import Sequence

from dflash_runtime.bench.latency import LatencyResult
from dflash_runtime.bench.long_cache import LIVE, CacheResult
from dflash_runtime.bench.offline import SetResult, SystemResult
from dflash_runtime.bench.results import BenchResult, BundleResult
from dflash_runtime.bench.sweeps import Point
from dflash_runtime.reports.page import Page, Section, Table

SWEEPS = {"concurrency": "requests together", "context": "prompt tokens", "blocks": "block size"}


def page(result: BenchResult) -> Page:
    """The whole report, without drawings."""
    return Page(title="dflash-bench", sections=[_about(result), *(s for b in result.bundles for s in _bundle(b))])


def _about(result: BenchResult) -> Section:
    here, plan = result.about, result.plan
    rows = [
        ("command", here.command), ("date", here.date), ("machine", here.machine),
        ("load before", f"{here.load} (near 0 on a quiet machine)"),
        ("versions", ", ".join(f"{k} {v}" for k, v in here.versions.items())),
        ("prompts", f"{plan.prompts} a set, answers of up to {plan.new_tokens} tokens, {plan.repeats} repeats in turn"),
        ("took", f"{result.seconds:.0f} s"),
    ]  # fmt: skip
    text = (
        "Greedy. Speeds are medians over prompts, with the range of the middle half; prefill and first draft call "
        "are counted. A speed counts only where the answer is plain decoding's, token for token."
    )
    return Section(heading="How this was measured", text=[text], tables=[Table(headings=("", ""), rows=rows)])


def _bundle(bundle: BundleResult) -> list[Section]:
    found = [_speed(bundle), _acceptance(bundle)] if bundle.sets else []
    found += [_latency(bundle.name, bundle.latency)] if bundle.latency else []
    sweeps: dict[str, Sequence[Point]] = {kind: getattr(bundle, kind) for kind in SWEEPS}
    found += [_sweep(bundle.name, kind, points) for kind, points in sweeps.items() if points]
    return [*found, _cache(bundle.name, bundle.cache)] if bundle.cache is not None else found


def _speed(bundle: BundleResult) -> Section:
    manifest = bundle.manifest
    text = [
        f"Target {manifest.precision}, drafter {manifest.draft_precision}; prompts through the {bundle.prompt_form}."
    ]
    if not bundle.lossless:
        text.append(
            "Answers with the drafter differ from plain decoding's: that is a fault, and no speed of them is told."
        )
    text += [f"{name} did not take part: {why}." for name, why in bundle.absent.items()]
    rows = [_speed_row(s) for found in bundle.sets for s in found.systems]
    headings = ("set", "system", "tokens/s", "over plain", "same answers")
    return Section(heading=f"{bundle.name}: speed", text=text, tables=[Table(headings=headings, rows=rows)])


def _speed_row(found: SystemResult) -> tuple[str, ...]:
    speed = "-" if found.tokens_per_second is None else f"{found.tokens_per_second.median:.1f}"
    ratio = "-" if found.over_plain is None else f"{found.over_plain}x"
    return found.set_name, found.system, speed, ratio, f"{found.equal} of {found.prompts}"


def _acceptance(bundle: BundleResult) -> Section:
    headings = ("set", "passes", "acceptance length", "rate", "kept by position", "kept where all before were")
    text = [] if bundle.host_share is None else [f"The loop itself took {bundle.host_share:.1%} of decoding."]
    rows = [_acceptance_row(found) for found in bundle.sets]
    return Section(heading=f"{bundle.name}: acceptance", text=text, tables=[Table(headings=headings, rows=rows)])


def _acceptance_row(found: SetResult) -> tuple[str, ...]:
    kept = found.acceptance
    return (
        found.set_name, str(kept.count), f"{kept.acceptance_length:.2f}", f"{kept.acceptance_rate:.2f}",
        _shares(kept.by_position), _shares(kept.conditional),
    )  # fmt: skip


def _shares(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _latency(name: str, found: Sequence[LatencyResult]) -> Section:
    rows = [
        (latency.name, what, *(f"{values[p]:.1f}" for p in values))
        for latency in found
        for what, values in (
            ("first token", latency.first_token),
            ("iteration", latency.iteration),
            ("between tokens", latency.between_tokens),
        )
        if values
    ]
    text = ["Tokens of one iteration arrive together, so most gaps between tokens are 0 when drafting works."]
    table = Table(headings=("system", "what", "p50 ms", "p90 ms", "p99 ms", "mean ms"), rows=rows)
    return Section(heading=f"{name}: latency", text=text, tables=[table])


def _sweep(name: str, kind: str, points: Sequence[Point]) -> Section:
    rows = [
        (str(p.value), _number(p.drafted), _number(p.plain), "-" if p.ratio is None else f"{p.ratio:.2f}x",
         f"{p.acceptance_length:.2f}", "yes" if p.lossless else "no")
        for p in points
    ]  # fmt: skip
    headings = (SWEEPS[kind], "tokens/s with the drafter", "plain", "ratio", "acceptance length", "same answers")
    return Section(heading=f"{name}: by {SWEEPS[kind]}", tables=[Table(headings=headings, rows=rows)])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _cache(name: str, found: CacheResult) -> Section:
    text = (
        f"An iteration at {LIVE} tokens takes {found.small_ms:.1f} ms with caches for {found.small} tokens and "
        f"{found.large_ms:.1f} ms with caches for {found.large}: {found.ratio:.2f}x."
    )
    return Section(heading=f"{name}: long caches", text=[text])
