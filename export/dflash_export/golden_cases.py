"""The golden cases of a pair: which calls, and their results as the oracle gives them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.contract import MASK_WORD_BITS
from dflash_engines.golden import BEST, SLOTS, Call, Golden, Runner, digest

Tokens = Sequence[int]
_DRAWN = {"seed": np.array([7, 2**59 + 11]), "draft_temperature": np.array([0.9, 0.0], np.float32)}


def _prefill(slot: int, tokens: Tokens, start: int) -> Call:
    rows = len(tokens)
    return Call(program="target", first_slot=slot, inputs={
        "tokens": np.array([tokens]), "start": np.array([start]), "length": np.array([start + rows]),
        "rows": np.array([[rows - 1]])})  # fmt: skip


def _iteration(
    runner: Runner,
    anchors: NDArray[np.int64],
    starts: NDArray[np.int64],
    active: NDArray[np.bool_],
    block_size: int,
    mask: int,
) -> Iterator[tuple[Call, dict[str, NDArray[Any]]]]:
    """draft, target, accept over all slots; each call's inputs come from the oracle's outputs before it."""
    limits = runner.limits
    start = np.where(active, starts, limits.max_len)
    length = np.where(active, start + block_size, 1)
    tokens = np.full((len(anchors), block_size), mask)
    tokens[:, 0] = anchors
    at = {"start": start, "length": length}
    draft = Call(program="draft", first_slot=0, inputs={"tokens": tokens, **at})
    yield draft, (drafted := runner.run(draft))
    if "draft_noise" in runner.arena.programs:
        drawn = Call(program="draft_noise", first_slot=0, inputs={"tokens": tokens, **at, **_DRAWN})
        yield drawn, runner.run(drawn)
    rows = np.tile(np.arange(block_size), (len(anchors), 1))
    target = Call(program="target", first_slot=0, inputs={"tokens": drafted["block"], "rows": rows, **at})
    yield target, (found := runner.run(target))
    inputs = {
        BEST: found["logits"].argmax(-1), "block": drafted["block"], "start": start, "forced": np.ones_like(start),
        "count": np.where(active, block_size, 0), "limit": np.full_like(start, limits.max_len)}  # fmt: skip
    for accept in _accept_calls(runner, inputs):
        yield accept, runner.run(accept)


def _accept_calls(runner: Runner, inputs: dict[str, NDArray[Any]]) -> list[Call]:
    """Every variant; the rules differ between the slots."""
    logits = next(b for b in runner.arena.programs["target"].outputs if b.name == "logits")
    vocab_size = int(logits.shape[-1])
    rules: dict[str, NDArray[Any]] = {
        "seed": np.array([7, 2**59 + 11]),
        "temperature": np.array([0.9, 0.0], np.float32),
        "min_p": np.array([0.0, 0.5], np.float32),
        "top_k": np.array([0, 3]),
        "top_p": np.array([0.75, 1.0], np.float32),
        "grammar_mask": _masks(vocab_size, inputs[BEST]),
        "min_end": inputs["start"] + np.array([2, 0]),
        "bias": np.where(np.arange(vocab_size) % 7, 0, [[[-np.inf], [0.5]], [[0.25], [0.0]]]).astype(np.float32),
        "in_prompt": np.arange(vocab_size) % np.array([[2], [5]]) > 0,
        "generated": np.tile(np.arange(vocab_size) % 4, (SLOTS, 1)).astype(np.float32),
        "repetition_penalty": np.array([1.25, 1.0], np.float32),
        "frequency_penalty": np.array([0.0, 0.125], np.float32),
        "presence_penalty": np.array([0.25, 0.0], np.float32),
    }
    offered = inputs | rules
    calls = []
    for name, program in runner.arena.programs.items():
        if name.startswith("accept"):
            used = [BEST, *(b.name for b in program.inputs if b.name != "logits")]
            calls.append(Call(program=name, first_slot=0, inputs={key: offered[key] for key in used}))
    return calls


def _masks(vocab_size: int, best: NDArray[np.int64]) -> NDArray[np.int32]:
    """[B, R, W]: two of three tokens are allowed, the best one of every row too."""
    allowed = np.arange(-(-vocab_size // MASK_WORD_BITS) * MASK_WORD_BITS) % 3 > 0
    rows = np.tile(allowed, (*best.shape, 1))
    np.put_along_axis(rows, best[..., None], True, -1)
    return np.packbits(rows, axis=-1, bitorder="little").view(np.int32)


def record(oracle: Runner, prompts: Sequence[Tokens], block_size: int, mask: int, tolerance: float) -> Golden:
    """Prefill two slots, iterate with both, with one idle, and at the end of the cache; keep calls and results."""
    first, second = (list(prompts[i % len(prompts)])[: oracle.limits.prefill_chunk] for i in range(SLOTS))
    half = max(2, len(first) // 2)
    calls = [
        _prefill(0, first[:half], 0),
        _prefill(0, first[half:] or first[-1:] * 2, half),
        _prefill(1, second, 0),
    ]
    recorded = [(call, oracle.run(call)) for call in calls]
    anchors = np.array([first[-1], second[-1]])
    end = oracle.limits.max_len - 1
    for starts, active in (
        ((len(first), len(second)), (True, True)),
        ((len(first) + 2, len(second) + 1), (True, True)),
        ((len(first) + 3, 0), (True, False)),
        ((end, len(second) + 2), (True, True)),
    ):
        recorded += _iteration(oracle, anchors, np.array(starts), np.array(active), block_size, mask)
    return Golden(
        calls=tuple(call for call, _ in recorded),
        results=tuple(digest(r) for _, r in recorded),
        tolerance=tolerance,
    )
