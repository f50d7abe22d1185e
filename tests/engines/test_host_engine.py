from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dflash_engines.backend import Buffers, Options, Run
from dflash_engines.bundle import Bundle
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import HostEngine, SingleRowEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from tests.engines.scripted_bundle import BLOCK_SIZE, MAX_LEN, PREFILL_CHUNK
from tests.engines.scripted_pair import POISON_ID, draft_block, plain_tokens

PROMPTS = ([5, 6, 7], [90, 91], [33, 34, 35, 36, 37])


class Recorder:
    """Notes every call's program and shape on its way to ONNX Runtime."""

    def __init__(self, bundle: Bundle) -> None:
        self._programs = OnnxRuntimePrograms(bundle, Options())
        self.bound = 0
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.starts: list[list[int]] = []

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        self.bound += 1
        run = self._programs.bind(program, inputs, outputs)
        shape = inputs["block" if program == "accept" else "tokens"].shape

        def recorded() -> None:
            self.calls.append((program, shape))
            self.starts.append(inputs["start"].tolist())
            run()

        return recorded


@pytest.fixture
def recorder(bundle: Bundle) -> Recorder:
    return Recorder(bundle)


@pytest.fixture
def engine(bundle: Bundle, recorder: Recorder) -> HostEngine:
    return HostEngine(bundle, recorder, host_limits(bundle, Options()))


def start(engine: HostEngine, slot: int, prompt: list[int]) -> int:
    """Prefill and place; returns the first new token."""
    anchor = int(engine.finish_prefill(slot, prompt, 0).sampled[0, 0])
    engine.place(slot, anchor, len(prompt), engine.limits.max_len)
    return anchor


def gained(engine: HostEngine, block_size: int, slot: int) -> list[int]:
    engine.launch(block_size)
    found = engine.collect()
    return [int(t) for t in found.sampled[slot, : found.accepted[slot] + 1]]


def generated(engine: HostEngine, slot: int, prompt: list[int], block_sizes: list[int]) -> list[int]:
    tokens = [start(engine, slot, prompt)]
    for block_size in block_sizes:
        tokens += gained(engine, block_size, slot)
    return tokens


def caches(engine: HostEngine, slot: int) -> dict[str, NDArray[Any]]:
    """Copies of the slot's caches."""
    arena = engine._arena
    rows = engine.limits.cache_rows
    return {
        name: arena.buffers[name].reshape(-1, rows)[slot].copy()
        for name in ("target_key_0", "target_value_0", "draft_key_0", "draft_value_0")
    }


def test_an_iteration_returns_the_block_and_the_targets_tokens(engine: HostEngine) -> None:
    prompt = PROMPTS[0]
    anchor = start(engine, 0, prompt)
    engine.launch(BLOCK_SIZE)
    found = engine.collect()
    assert found.block[0].tolist() == draft_block(prompt, anchor, BLOCK_SIZE)
    kept = int(found.accepted[0]) + 1
    assert found.sampled[0, :kept].tolist() == plain_tokens(prompt, kept + 1)[1:]
    assert found.finite.tolist()[0]


def test_the_block_size_may_change_from_one_iteration_to_the_next(engine: HostEngine) -> None:
    tokens = generated(engine, 0, PROMPTS[0], [6, 1, 3, 3, 1, 1, 2, 6, 4])
    assert tokens == plain_tokens(PROMPTS[0], len(tokens))


def test_a_slot_may_be_placed_again_at_an_earlier_row(engine: HostEngine) -> None:
    prompt = PROMPTS[2]
    anchor = start(engine, 0, prompt)
    for _ in range(3):
        engine.place(0, anchor, len(prompt), MAX_LEN)
        engine.launch(3)
        assert engine.collect().block[0].tolist() == draft_block(prompt, anchor, 3)


def test_each_program_is_told_the_row_of_its_first_token(engine: HostEngine, recorder: Recorder) -> None:
    """accept looks at the last prompt token alone, whatever chunk it came in."""
    engine.prefill(0, [5, 6, 7], 0)
    engine.finish_prefill(0, [8, 9], 3)
    engine.place(0, 40, 5, MAX_LEN)
    gained(engine, 6, 0)
    programs = [program for program, _ in recorder.calls]
    assert programs == ["target", "target", "accept", "draft", "target", "accept"]
    assert recorder.starts == [[0], [3], [4], [5], [5], [5]]


def test_prefill_between_iterations_does_not_disturb_the_next_block(engine: HostEngine) -> None:
    anchor = start(engine, 0, PROMPTS[0])
    tokens = [anchor, *gained(engine, 6, 0)]
    engine.prefill(1, PROMPTS[2], 0)
    engine.finish_prefill(1, PROMPTS[1], 0)
    engine.launch(6)
    found = engine.collect()
    assert found.block[0].tolist() == draft_block([*PROMPTS[0], *tokens[:-1]], tokens[-1], 6)


def test_prefill_in_chunks_equals_prefill_at_once(engine: HostEngine) -> None:
    prompt = [7, 3, 9, 100, 41, 8, 7, 7, 60, 2, 11]
    engine.prefill(0, prompt[:4], 0)
    engine.prefill(0, prompt[4:5], 4)
    engine.prefill(0, prompt[5:10], 5)
    anchor = int(engine.finish_prefill(0, prompt[10:], 10).sampled[0, 0])
    assert anchor == plain_tokens(prompt, 1)[0]
    engine.place(0, anchor, len(prompt), MAX_LEN)
    assert gained(engine, 6, 0)[0] == plain_tokens(prompt, 2)[1]


def test_slots_do_not_touch_each_other(engine: HostEngine) -> None:
    tokens = {slot: [start(engine, slot, prompt)] for slot, prompt in enumerate(PROMPTS)}
    for block_size in (6, 2, 1, 6):
        engine.launch(block_size)
        found = engine.collect()
        for slot, answer in tokens.items():
            answer += found.sampled[slot, : found.accepted[slot] + 1].tolist()
    for slot, answer in tokens.items():
        assert answer == plain_tokens(PROMPTS[slot], len(answer))


def test_an_idle_slot_between_busy_ones_keeps_its_rows(engine: HostEngine) -> None:
    for slot, prompt in enumerate(PROMPTS):
        start(engine, slot, prompt)
    engine.park(1)
    before = caches(engine, 1)
    tokens = [gained(engine, size, 2) for size in (6, 1, 4)]
    after = caches(engine, 1)
    for name in before:
        assert np.array_equal(before[name][:MAX_LEN], after[name][:MAX_LEN]), name
    answer = list(chain.from_iterable(tokens))
    assert answer == plain_tokens(PROMPTS[2], 1 + len(answer))[1:]


def test_only_slots_from_the_first_busy_to_the_last_are_computed(engine: HostEngine, recorder: Recorder) -> None:
    start(engine, 1, PROMPTS[1])
    recorder.calls.clear()
    gained(engine, 6, 1)
    assert [shape for _, shape in recorder.calls] == [(1, 6)] * 3


def test_blocks_at_the_end_of_the_context_write_to_the_guard_rows(engine: HostEngine) -> None:
    prompt = [i % 200 for i in range(MAX_LEN)]
    for begin in range(0, MAX_LEN, PREFILL_CHUNK):
        chunk = prompt[begin : begin + PREFILL_CHUNK]
        if begin + PREFILL_CHUNK < MAX_LEN:
            engine.prefill(0, chunk, begin)
        else:
            anchor = int(engine.finish_prefill(0, chunk, begin).sampled[0, 0])
    neighbour = caches(engine, 1)
    engine.place(0, anchor, MAX_LEN, MAX_LEN)
    for _ in range(3):  # run-ahead: nobody needs these tokens, but they must stay inside the slot
        gained(engine, BLOCK_SIZE, 0)
    for name, rows in caches(engine, 1).items():
        assert np.array_equal(neighbour[name], rows), name


def test_no_call_has_one_row_in_all(engine: HostEngine, recorder: Recorder) -> None:
    generated(engine, 0, [5], [1, 1, 2, 6, 1])
    generated(engine, 2, [9, 8, 7], [1, 3])
    target_rows = [shape[0] * shape[1] for program, shape in recorder.calls if program == "target"]
    assert min(target_rows) == 2


def test_the_single_row_baseline_decodes_in_calls_of_one_row(bundle: Bundle, recorder: Recorder) -> None:
    engine = SingleRowEngine(bundle, recorder, host_limits(bundle, Options()))
    tokens = generated(engine, 0, PROMPTS[0], [1] * 8)
    assert tokens == plain_tokens(PROMPTS[0], 9)
    assert recorder.calls[-2] == ("target", (1, 1))


def test_plain_decoding_never_drafts(engine: HostEngine, recorder: Recorder) -> None:
    generated(engine, 0, PROMPTS[0], [1] * 4)
    assert "draft" not in {program for program, _ in recorder.calls}


def test_a_call_shape_is_bound_once(engine: HostEngine, recorder: Recorder) -> None:
    start(engine, 0, [5])
    gained(engine, 6, 0)
    bound = recorder.bound
    for _ in range(5):
        gained(engine, 6, 0)
    assert recorder.bound == bound


def test_non_finite_numbers_are_told_of_their_slot_alone_and_cleared(engine: HostEngine) -> None:
    tokens = [start(engine, 0, PROMPTS[0])]
    assert not engine.finish_prefill(1, [POISON_ID], 0).finite[0]
    engine.place(1, POISON_ID, 1, MAX_LEN)
    engine.launch(6)
    found = engine.collect()
    assert found.finite.tolist()[:2] == [True, False]
    engine.clear(1)
    assert not any(rows.any() for rows in caches(engine, 1).values())
    tokens += found.sampled[0, : found.accepted[0] + 1].tolist() + gained(engine, 6, 0)
    assert tokens == plain_tokens(PROMPTS[0], len(tokens))


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda e: e.launch(6), "no slot is placed"),
        (lambda e: e.collect(), "nothing was launched"),
        (lambda e: (start(e, 0, [5]), e.launch(7)), r"block size 7 is not within 1\.\.6"),
        (lambda e: (start(e, 0, [5]), e.launch(2), e.launch(2)), "collect it before the next"),
    ],
)
def test_misuse_is_an_error(engine: HostEngine, misuse: Callable[[HostEngine], object], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        misuse(engine)


def test_time_is_told_by_program(engine: HostEngine) -> None:
    before = engine.timing
    assert before.prefill == before.target == 0.0
    generated(engine, 0, PROMPTS[0], [1])
    plain = engine.timing
    assert plain.draft == 0.0 < min(plain.prefill, plain.target, plain.accept)
    gained(engine, 6, 0)
    assert engine.timing.draft > 0.0


def test_what_was_launched_may_be_discarded(engine: HostEngine) -> None:
    prompt = PROMPTS[0]
    anchor = start(engine, 0, prompt)
    engine.launch(6)
    engine.discard()
    with pytest.raises(EngineError, match="nothing was launched"):
        engine.collect()
    engine.place(0, anchor, len(prompt), MAX_LEN)
    tokens = [anchor, *gained(engine, 6, 0)]
    assert tokens == plain_tokens(prompt, len(tokens))
