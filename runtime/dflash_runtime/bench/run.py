"""The benchmark: loads bundles and peers, tells the cost, measures mode by mode."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.errors import RequestError
from dflash_runtime.bench import offline, sweeps
from dflash_runtime.bench.about import about
from dflash_runtime.bench.latency import LatencyResult, measure_latency
from dflash_runtime.bench.long_cache import CacheResult, measure_cache
from dflash_runtime.bench.offline import SetResult, Told
from dflash_runtime.bench.peers import Peer, PeerChoice, load_peer
from dflash_runtime.bench.plan import Mode, Pace, Plan, Room, concurrent_prompts, costs, fitted, fitting, pace
from dflash_runtime.bench.results import BenchResult, BundleResult
from dflash_runtime.bench.sweeps import Point
from dflash_runtime.bench.system import DRAFTED, PLAIN, System, load_decoder, own_systems
from dflash_runtime.decoder import Decoder
from dflash_runtime.evaluation import questions

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What to measure, on what."""

    bundles: tuple[Path, ...]
    plan: Plan
    peers: tuple[PeerChoice, ...] = ()
    minutes: float | None = None  # prompts and repeats are cut until the estimate fits
    backend: str = "onnxruntime"
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One bundle, loaded, with the peers that take part."""

    name: str
    bundle: Bundle
    decoder: Decoder
    systems: list[System]
    absent: dict[str, str]

    def encode(self, question: str) -> Tokens:
        """A question as the model was trained to be asked: through its template, if it has one."""
        messages = [{"role": "user", "content": question}]
        return self.decoder.encoder.encode(question if self.decoder.encoder.template is None else messages)

    def prompts(self, plan: Plan) -> list[tuple[str, Tokens]]:
        """(set, prompt) for every prompt of the plan that leaves room for its answer. Raises RequestError for none."""
        room = self.decoder.engine.limits.max_len - plan.new_tokens
        asked = [(name, self.encode(q)) for name in plan.sets for q in questions(name, plan.prompts)]
        found = [(name, tokens) for name, tokens in asked if len(tokens) <= room]
        if not found:
            raise RequestError(f"{self.name}: no prompt leaves room for {plan.new_tokens} tokens; ask for fewer, or "
                               "export with a larger --max-len")  # fmt: skip
        return found

    def swept(self, plan: Plan, count: int) -> list[Tokens]:
        """`count` prompts, taken from the sets in turn."""
        by_set = [[tokens for n, tokens in self.prompts(plan) if n == name] for name in plan.sets]
        in_turn = [tokens[i] for i in range(plan.prompts) for tokens in by_set if i < len(tokens)]
        return in_turn[:count]


CostsTold = Callable[[Plan, dict[str, dict[Mode, float]]], object]


def bench(request: BenchRequest, costs_told: CostsTold, told: Told) -> BenchResult:
    """Measure everything. `costs_told` hears the plan and the seconds that each bundle's modes will take."""
    begin, here = perf_counter(), about()
    subjects = [_load(path, request) for path in request.bundles]
    plan = _planned(request, subjects, costs_told)
    found = tuple(_measure(subject, plan, request, told) for subject in subjects)
    return BenchResult(about=here, plan=plan, bundles=found, seconds=round(perf_counter() - begin, 1))


def _load(path: Path, request: BenchRequest) -> Subject:
    bundle = Bundle.open(path)
    decoder = load_decoder(bundle, request.backend, request.threads)
    threads = request.threads or len(os.sched_getaffinity(0))
    peers = {choice.name: _peer(choice, bundle, threads) for choice in request.peers}
    return Subject(
        name=path.name,
        bundle=bundle,
        decoder=decoder,
        systems=[*own_systems(decoder), *(peer for peer in peers.values() if not isinstance(peer, str))],
        absent={name: reason for name, reason in peers.items() if isinstance(reason, str)},
    )


def _peer(choice: PeerChoice, bundle: Bundle, threads: int) -> Peer | str:
    """The peer, or why it can't take part."""
    if bundle.manifest.precision != "fp32":
        return f"peers run the checkpoint's own weights, this bundle's are {bundle.manifest.precision}"
    return load_peer(choice, bundle, threads)


def _planned(request: BenchRequest, subjects: Sequence[Subject], costs_told: CostsTold) -> Plan:
    """The plan, cut to the minutes there are, and told."""
    measured = [(subject, pace(subject.systems, subject.prompts(request.plan)[0][1])) for subject in subjects]

    def cost(plan: Plan) -> float:
        return sum(sum(_costs(subject, plan, found).values()) for subject, found in measured)

    plan = request.plan if request.minutes is None else fitted(request.plan, 60 * request.minutes, cost)
    costs_told(plan, {subject.name: _costs(subject, plan, found) for subject, found in measured})
    return plan


def _costs(subject: Subject, plan: Plan, found: Pace) -> dict[Mode, float]:
    lengths = [len(tokens) for _, tokens in subject.prompts(plan)]
    limits = subject.decoder.engine.limits
    room = Room(
        block_sizes=len(limits.block_sizes), max_len=limits.max_len, prompt=sum(lengths) // max(len(lengths), 1)
    )
    return costs(plan, found, room)


def _measure(subject: Subject, plan: Plan, request: BenchRequest, told: Told) -> BundleResult:
    def tell(what: str) -> None:
        told(f"{subject.name}: {what}")

    return BundleResult(
        name=subject.name,
        manifest=subject.bundle.manifest,
        prompt_form="plain text" if subject.decoder.encoder.template is None else "chat template",
        sets=_offline(subject, plan, tell),
        latency=_latency(subject, plan, tell),
        concurrency=_concurrency(subject, plan, request, tell),
        context=_context(subject, plan, tell),
        blocks=_blocks(subject, plan, tell),
        cache=_cache(subject, plan, request, tell),
        absent=subject.absent,
    )


def _offline(subject: Subject, plan: Plan, told: Told) -> tuple[SetResult, ...]:
    if "offline" not in plan.modes:
        return ()
    answered = offline.answer_all(
        subject.systems, subject.prompts(plan), new_tokens=plan.new_tokens, repeats=plan.repeats, told=told
    )
    return tuple(offline.by_set(answered))


def _latency(subject: Subject, plan: Plan, told: Told) -> tuple[LatencyResult, ...]:
    if "latency" not in plan.modes:
        return ()
    told("latency")
    prompts = subject.swept(plan, plan.swept)
    return tuple(
        measure_latency(subject.decoder, name, block, prompts, plan.new_tokens)
        for name, block in ((PLAIN, 1), (DRAFTED, None))
    )


def _concurrency(subject: Subject, plan: Plan, request: BenchRequest, told: Told) -> tuple[Point, ...]:
    if "concurrency" not in plan.modes:
        return ()
    prompts = subject.swept(plan, concurrent_prompts(plan))
    longest = max(map(len, prompts)) + plan.new_tokens
    options = Options(threads=request.threads, max_len=longest)
    slots = [count for count in plan.slots if count <= len(prompts)]
    return tuple(
        sweeps.sweep_concurrency(
            subject.bundle.path, options, request.backend, prompts, slots, new_tokens=plan.new_tokens, told=told
        )
    )


def _context(subject: Subject, plan: Plan, told: Told) -> tuple[Point, ...]:
    lengths = fitting(plan, subject.decoder.engine.limits.max_len)
    if "context" not in plan.modes or not lengths:
        return ()
    text = sweeps.context_text(subject.decoder, questions(plan.sets[0], 40), max(lengths))
    found = sweeps.sweep_context(
        subject.decoder, text, lengths, new_tokens=plan.new_tokens, repeats=plan.repeats, told=told
    )
    return tuple(found)


def _blocks(subject: Subject, plan: Plan, told: Told) -> tuple[Point, ...]:
    if "blocks" not in plan.modes:
        return ()
    prompts = subject.swept(plan, plan.swept)
    found = sweeps.sweep_block_sizes(
        subject.decoder, prompts, new_tokens=plan.new_tokens, repeats=plan.repeats, told=told
    )
    return tuple(found)


def _cache(subject: Subject, plan: Plan, request: BenchRequest, told: Told) -> CacheResult | None:
    if "cache" not in plan.modes:
        return None
    told("long caches")
    return measure_cache(subject.bundle, request.backend, request.threads)
