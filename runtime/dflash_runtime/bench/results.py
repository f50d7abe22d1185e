"""Everything that one run of dflash-bench found."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dflash_engines.manifest import Manifest
from dflash_runtime.bench.about import About
from dflash_runtime.bench.latency import LatencyResult
from dflash_runtime.bench.long_cache import CacheResult
from dflash_runtime.bench.offline import SetResult
from dflash_runtime.bench.plan import Plan
from dflash_runtime.bench.sweeps import Point
from dflash_runtime.bench.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleResult:
    """One bundle; modes that weren't asked for are empty."""

    name: str
    manifest: Manifest
    prompt_form: str  # chat template or plain text
    sets: tuple[SetResult, ...] = ()
    latency: tuple[LatencyResult, ...] = ()
    concurrency: tuple[Point, ...] = ()
    context: tuple[Point, ...] = ()
    blocks: tuple[Point, ...] = ()
    cache: CacheResult | None = None
    absent: dict[str, str] = field(default_factory=dict)  # peers that could not take part, and why

    @property
    def lossless(self) -> bool:
        """Whether every answer with the drafter was the one without it."""
        points = (*self.concurrency, *self.context, *self.blocks)
        return all(s.lossless for s in self.sets) and all(p.lossless for p in points)

    @property
    def host_share(self) -> float | None:
        """The loop's part of the time that decoding with the drafter took."""
        decode = sum(s.seconds[part] for s in self.sets for part in ("draft", "target", "accept", "host"))
        return sum(s.seconds["host"] for s in self.sets) / decode if decode else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """All bundles, and where and how they were measured."""

    about: About
    plan: Plan
    bundles: tuple[BundleResult, ...]
    seconds: float

    @property
    def lossless(self) -> bool:
        """See BundleResult."""
        return all(bundle.lossless for bundle in self.bundles)


def as_json(result: BenchResult) -> dict[str, Any]:
    """Plain values for json.dump, with what is derived from them."""
    found: dict[str, Any] = _plain(result)
    return found


def _plain(value: Any) -> Any:
    """Of our own dataclasses: their fields, and the properties that are results."""
    if isinstance(value, Tally):
        return value.as_json()
    if isinstance(value, Manifest):
        return {k: getattr(value, k) for k in ("architecture", "precision", "draft_precision", "block_size",
                "draft_vocab_size", "target_layer_ids")} | {"max_len": value.limits.max_len}  # fmt: skip
    if dataclasses.is_dataclass(value):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        derived = ("ratio", "lossless", "host_share")
        return fields | {
            name: getattr(value, name) for name in derived if isinstance(getattr(type(value), name, None), property)
        }
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
