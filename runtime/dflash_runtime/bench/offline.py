"""Whole answers, one after the other: every system on every prompt in turn, so that a busy moment hits all of them.

A speed counts only where the answer is the baseline's, token for token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dflash_runtime.bench.spread import Spread
from dflash_runtime.bench.system import DRAFTED, WHOLE_BLOCKS, Run, System
from dflash_runtime.bench.tally import Tally, tally
from dflash_runtime.completion import Completion

WARM_UP_TOKENS = 4
_OURS = (DRAFTED, WHOLE_BLOCKS)  # whose answers are promised to be plain decoding's
Tokens = Sequence[int]
Told = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What every system made of one prompt, by its name; the first is the baseline."""

    set_name: str
    runs: dict[str, list[Run]]

    @property
    def baseline(self) -> list[Run]:
        """The runs that the others are held to."""
        return next(iter(self.runs.values()))

    def equal(self, name: str) -> bool:
        """Whether every run of that system wrote the baseline's tokens."""
        return all(run.token_ids == self.baseline[0].token_ids for run in self.runs[name])

    def speed(self, name: str) -> float:
        """Tokens a second, by the median of the repeats; prefill and first draft call are counted."""
        return len(self.runs[name][0].token_ids) / median(run.seconds for run in self.runs[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemResult:
    """One system on one set. No speed without an answer that equals the baseline's."""

    set_name: str
    system: str
    equal: int
    prompts: int
    tokens_per_second: Spread | None
    over_plain: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """One set: every system, what was accepted of whole blocks, and where the drafter's answers spent their seconds."""

    set_name: str
    systems: tuple[SystemResult, ...]
    acceptance: Tally
    seconds: dict[str, float]

    @property
    def lossless(self) -> bool:
        """Whether our own answers with the drafter were those without, as promised."""
        return all(s.equal == s.prompts for s in self.systems if s.system in _OURS)


def answer_all(
    systems: Sequence[System], prompts: Sequence[tuple[str, Tokens]], *, new_tokens: int, repeats: int, told: Told
) -> list[Answered]:
    """Every system on every (set, prompt), `repeats` times; each repeat begins with another system."""
    for system in systems:
        system.generate(prompts[0][1], WARM_UP_TOKENS)
    answered = []
    for set_name, prompt in prompts:
        told(f"offline: {set_name}")
        runs: dict[str, list[Run]] = {system.name: [] for system in systems}
        for repeat in range(repeats):
            first = repeat % len(systems)
            for system in (*systems[first:], *systems[:first]):
                runs[system.name].append(system.generate(prompt, new_tokens))
        answered.append(Answered(set_name=set_name, runs=runs))
    return answered


def by_set(answered: Sequence[Answered]) -> list[SetResult]:
    """Results of each set, in the order of the prompts."""
    names = dict.fromkeys(a.set_name for a in answered)
    return [_set_result(name, [a for a in answered if a.set_name == name]) for name in names]


def _set_result(set_name: str, answered: Sequence[Answered]) -> SetResult:
    drafted, whole = (_completions(answered, name) for name in _OURS)
    parts = ("prefill", "draft", "target", "accept", "host")
    return SetResult(
        set_name=set_name,
        systems=tuple(_system_result(name, set_name, answered) for name in answered[0].runs),
        acceptance=tally(whole),
        seconds={part: sum(getattr(found.seconds, part) for found in drafted) for part in parts},
    )


def _completions(answered: Sequence[Answered], name: str) -> list[Completion]:
    return [run.completion for a in answered for run in a.runs.get(name, []) if run.completion is not None]


def _system_result(name: str, set_name: str, answered: Sequence[Answered]) -> SystemResult:
    equal = [a for a in answered if a.equal(name)]
    # One answer that the drafter changed is a fault of ours: no speed of it is worth telling.
    counted = [] if name in _OURS and len(equal) < len(answered) else equal
    baseline = next(iter(answered[0].runs))
    return SystemResult(
        set_name=set_name,
        system=name,
        equal=len(equal),
        prompts=len(answered),
        tokens_per_second=Spread.of([a.speed(name) for a in counted]),
        over_plain=Spread.of([a.speed(name) / a.speed(baseline) for a in counted]),
    )
