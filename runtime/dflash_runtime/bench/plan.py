"""What is measured and how much of it; and what that costs, told before it begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

from dflash_engines.errors import RequestError
from dflash_runtime.bench.offline import WARM_UP_TOKENS
from dflash_runtime.bench.system import PLAIN, System
from dflash_runtime.cost_table import BUDGET_SECONDS
from dflash_runtime.evaluation import SETS, check_sets

Mode = Literal["offline", "latency", "concurrency", "context", "blocks", "cache"]
MODES: tuple[Mode, ...] = get_args(Mode)
_CACHE_ITERATIONS = 90
_SWEPT_PROMPTS = 2  # of those of the plan, in sweeps
_PACE_TOKENS = 12
_LOAD_SECONDS = BUDGET_SECONDS + 2.0  # of an engine, with its cost table


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Raises RequestError for what can't be measured."""

    modes: tuple[Mode, ...] = ("offline",)
    sets: tuple[str, ...] = SETS
    prompts: int = 8  # of each set
    new_tokens: int = 128
    repeats: int = 3
    slots: tuple[int, ...] = (1, 2, 4, 8)
    contexts: tuple[int, ...] = (256, 512, 1024, 1536)

    def __post_init__(self) -> None:
        check_sets(self.sets)
        if strange := [mode for mode in self.modes if mode not in MODES]:
            raise RequestError(f"there is no mode {strange[0]!r}; there are {', '.join(MODES)}")
        for name, least in (("prompts", 1), ("new_tokens", 2), ("repeats", 1)):
            if getattr(self, name) < least:
                raise RequestError(f"{name} must be at least {least}, not {getattr(self, name)}")

    @property
    def swept(self) -> int:
        """Prompts in latency and sweeps, taken from the sets in turn."""
        return min(_SWEPT_PROMPTS, self.prompts * len(self.sets))


PRESETS = {
    "quick": Plan(sets=("gsm8k", "humaneval"), prompts=1, new_tokens=32, repeats=1),
    "core": Plan(modes=("offline", "cache"), sets=("gsm8k", "humaneval"), new_tokens=128, repeats=3),
    "report": Plan(modes=MODES, prompts=8, new_tokens=64, repeats=3, slots=(1, 4), contexts=(256, 1024)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of a prompt token, and of an answer's token by system."""

    prompt_token: float
    answer_token: dict[str, float]

    def answers(self, names: Sequence[str], count: int, prompt: int, new_tokens: int) -> float:
        """Seconds that `count` answers take each of the systems."""
        each = sum(prompt * self.prompt_token + new_tokens * self.answer_token[name] for name in names)
        return count * each


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What of the engine a cost depends on."""

    block_sizes: int  # how many there are to sweep
    max_len: int
    prompt: int  # tokens of a usual one


def pace(systems: Sequence[System], prompt: Sequence[int]) -> Pace:
    """Measured on one prompt: a short answer, and a single token for the prompt's share."""
    answer_token, prompt_token = {}, 0.0
    for system in systems:
        system.generate(prompt, WARM_UP_TOKENS)
        short, long = system.generate(prompt, 1), system.generate(prompt, _PACE_TOKENS)
        tokens = max(len(long.token_ids) - 1, 1)
        answer_token[system.name] = max(long.seconds - short.seconds, 0.0) / tokens
        if system.name == PLAIN:
            prompt_token = short.seconds / len(prompt)
    return Pace(prompt_token=prompt_token, answer_token=answer_token)


def costs(plan: Plan, pace: Pace, room: Room) -> dict[Mode, float]:
    """Seconds of each mode, for answers of full length: an upper bound where the model stops early."""
    found: dict[Mode, Callable[[], float]] = {
        "offline": lambda: pace.answers(
            list(pace.answer_token), plan.prompts * len(plan.sets) * plan.repeats, room.prompt, plan.new_tokens
        ),
        "latency": lambda: _plainly(pace, 2 * plan.swept, room.prompt, plan.new_tokens),
        "concurrency": lambda: (
            len(plan.slots)
            * (_LOAD_SECONDS + _plainly(pace, 2 * concurrent_prompts(plan), room.prompt, plan.new_tokens))
        ),
        "context": lambda: sum(
            _plainly(pace, 2 * plan.repeats, n, plan.new_tokens) for n in fitting(plan, room.max_len)
        ),
        "blocks": lambda: _plainly(
            pace, (room.block_sizes + 1) * plan.swept * plan.repeats, room.prompt, plan.new_tokens
        ),
        "cache": lambda: _CACHE_ITERATIONS * 3 * pace.answer_token[PLAIN],
    }
    return {mode: found[mode]() for mode in plan.modes}


def _plainly(pace: Pace, count: int, prompt: int, new_tokens: int) -> float:
    return pace.answers([PLAIN], count, prompt, new_tokens)


def concurrent_prompts(plan: Plan) -> int:
    """Requests of a concurrency point: enough to keep every slot busy."""
    return min(max(plan.slots), plan.prompts * len(plan.sets))


def fitting(plan: Plan, max_len: int) -> tuple[int, ...]:
    """Prompt lengths that leave room for an answer."""
    return tuple(n for n in plan.contexts if n + plan.new_tokens <= max_len)


def fitted(plan: Plan, seconds: float, cost: Callable[[Plan], float]) -> Plan:
    """The plan like `plan` with most answers that costs at most `seconds`; never fewer modes.

    The smallest one when none does; its cost is told, and it is measured all the same.
    """
    counts = product(range(1, plan.prompts + 1), range(1, plan.repeats + 1))
    # Of two with as many answers, the one with more prompts: repeats tell less than other texts do.
    largest_first = sorted(counts, key=lambda count: (count[0] * count[1], count[0]), reverse=True)
    plans = [replace(plan, prompts=prompts, repeats=repeats) for prompts, repeats in largest_first]
    return next((candidate for candidate in plans if cost(candidate) <= seconds), plans[-1])
