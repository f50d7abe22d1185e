"""Whether what is written is what plain decoding writes: the runtime on exact arithmetic, and the tiny pair."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_engines.contract import Limits
from dflash_engines.device.engine import DeviceEngine
from scripts.gpu_check.machine import device_name
from scripts.gpu_check.pairs import engine
from scripts.gpu_check.scripted import GEOMETRY, MASK_TOKEN_ID, ScriptedDraft, ScriptedTarget, plain_tokens
from scripts.gpu_check.sections import Result, SkippedSectionError

ROOT = Path(__file__).parents[2]
TINY = ROOT / "models" / "tiny"
ANSWERS = Path(__file__).with_name("tiny_answers.json")
_LIMITS = Limits(max_len=120, max_batch=3, prefill_chunk=16, block_sizes=(6,))
_PROMPTS = ([5, 6, 7], [90, 91], list(range(33, 70)))
_NEW = 60


def runtime(rehearse: bool) -> Result:
    """Three slots of the scripted pair, with and without graphs and run-ahead, against a plain loop in Python."""
    device = device_name(rehearse)
    found: Result = {}
    for name, how in (
        ("graphs, run-ahead", {}), ("graphs", {"run_ahead": 0}), ("run-ahead", {"graphs": False}),
        ("neither", {"graphs": False, "run_ahead": 0}),
    ):  # fmt: skip
        modules = {"target": ScriptedTarget(), "draft": ScriptedDraft()}
        made = engine(modules, GEOMETRY, _LIMITS, MASK_TOKEN_ID, device, **how)
        right = all(
            tokens == plain_tokens(prompt, len(tokens))
            for prompt, tokens in zip(_PROMPTS, decoded(made, _PROMPTS, 6, _NEW), strict=True)
        )
        found[name] = {"lossless": right, "replays": made.counts.replays, "why": made.counts.reason}
        made.close()
    return found


def decoded(made: DeviceEngine, prompts: Any, block_size: int, new_tokens: int) -> list[list[int]]:
    """The first `new_tokens` tokens after each prompt, all slots together."""
    answers = [_begin(made, slot, prompt) for slot, prompt in enumerate(prompts)]
    while any(len(answer) < new_tokens for answer in answers):
        while made.can_launch:
            made.launch(block_size)
        found = made.collect()
        for slot, answer in enumerate(answers):
            answer += found.sampled[slot, : found.accepted[slot] + 1].tolist()
    made.discard()  # what has run ahead
    for slot in range(len(prompts)):
        made.park(slot)
    return [answer[:new_tokens] for answer in answers]


def _begin(made: DeviceEngine, slot: int, prompt: list[int]) -> list[int]:
    chunk = made.limits.prefill_chunk
    *whole, last = [prompt[i : i + chunk] for i in range(0, len(prompt), chunk)]
    for index, tokens in enumerate(whole):
        made.prefill(slot, tokens, index * chunk)
    first = int(made.finish_prefill(slot, last, len(whole) * chunk).sampled[0, 0])
    made.place(slot, first, len(prompt), made.limits.max_len)
    return [first]


def tiny_pair(rehearse: bool) -> Result:
    """The trained tiny pair through PyTorch: golden cases from the CPU, and the answers that the CPU gave."""
    device = device_name(rehearse)
    try:
        from scripts.gpu_check.tiny import tiny_engine
    except ImportError as e:
        raise SkippedSectionError(f"needs the packages of the extra 'export': {e}") from e
    made, deviation = tiny_engine(TINY, device)
    carried: Mapping[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    same = agreements(made, carried)
    found = {
        "golden_deviation": deviation, "answers": len(carried["prompts"]), "drafted_equal_the_cpus": same["drafted"],
        "plain_equal_the_cpus": same["plain"], "drafted_equal_plain": same["both"],
    }  # fmt: skip
    made.close()
    return found


def agreements(made: DeviceEngine, carried: Mapping[str, Any]) -> dict[str, int]:
    """How many answers are the carried ones, drafted and plainly decoded; and how many are the same both ways."""
    count = {"drafted": 0, "plain": 0, "both": 0}
    for prompt, answer in zip(carried["prompts"], carried["answers"], strict=True):
        drafted, plain = (decoded(made, [prompt], size, len(answer))[0] for size in (max(made.limits.block_sizes), 1))
        count["drafted"] += drafted == answer
        count["plain"] += plain == answer
        count["both"] += drafted == plain
    return count
