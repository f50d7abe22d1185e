"""Against a plain loop that takes one token at a time, over random prompts, stops, budgets and context ends.

The scripted pair's tokens depend on every cache row, so a row left over from a rejected draft, another
request or another slot changes the answer.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.errors import EngineError, RequestError
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_runtime.loop import DecodeLoop, Failure, Progress
from dflash_runtime.request import Request
from tests.engines.scripted_bundle import BLOCK_SIZE, MAX_LEN, PREFILL_CHUNK
from tests.engines.scripted_pair import POISON_ID, SCRIPT, acceptance_lengths, plain_answer

PROMPT = st.lists(st.integers(0, POISON_ID - 1), min_size=1, max_size=MAX_LEN)
STOPS = st.sets(st.sampled_from(sorted(set(SCRIPT))) | st.integers(0, POISON_ID - 1), max_size=2)
REQUEST = st.builds(
    lambda tokens, new, stops, size: Request(
        tokens=tuple(tokens), max_new_tokens=new, stop_token_ids=frozenset(stops), block_size=size
    ),
    PROMPT,
    st.integers(1, MAX_LEN + 8),
    STOPS,
    st.integers(1, BLOCK_SIZE),
)
SHORT = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def request(tokens: list[int], **fields: object) -> Request:
    defaults: dict[str, Any] = {"max_new_tokens": 12, "stop_token_ids": frozenset(), "block_size": BLOCK_SIZE}
    return Request(tokens=tuple(tokens), **(defaults | fields))


def expected(request: Request) -> tuple[list[int], str]:
    return plain_answer(list(request.tokens), request.max_new_tokens, request.stop_token_ids, MAX_LEN)


def answer(events: list[Progress]) -> tuple[list[int], str | None]:
    return [token for event in events for token in event.token_ids], events[-1].finish_reason


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> HostEngine:
    return HostEngine(bundle, OnnxRuntimePrograms(bundle, Options()), host_limits(bundle, Options(slots=4)))


@pytest.fixture
def loop(engine: HostEngine) -> Iterator[DecodeLoop]:
    yield DecodeLoop(engine)
    for slot in range(4):
        engine.clear(slot)


@given(request=REQUEST)
@SHORT
def test_the_answer_is_the_plain_loops(loop: DecodeLoop, request: Request) -> None:
    """One loop over all examples: whatever the requests before left behind, a fresh one isn't disturbed."""
    events = list(loop.run(0, request))
    assert answer(events) == expected(request)
    assert all(event.finish_reason is None for event in events[:-1])
    assert all(event.token_ids for event in events)


@given(request=REQUEST)
@SHORT
def test_acceptance_lengths_are_those_of_fresh_caches(loop: DecodeLoop, request: Request) -> None:
    """The drafter's context rows are right, also after prefix reuse and chunked prefill."""
    events = list(loop.run(0, request))
    count = len(answer(events)[0])
    lengths = [event.acceptance_length for event in events]
    assert lengths[0] is None
    assert request.block_size is not None
    wanted = acceptance_lengths(list(request.tokens), count, request.block_size)
    end = MAX_LEN - len(request.tokens)  # rows beyond the context are never anybody's context
    safe = sum(1 for i in range(len(wanted)) if sum(wanted[: i + 1]) <= end)
    assert lengths[1:][:safe] == wanted[:safe]


@given(st.lists(REQUEST, min_size=2, max_size=4), st.lists(st.integers(0, 6), min_size=4, max_size=4))
@SHORT
def test_requests_in_company_get_what_each_gets_alone(
    loop: DecodeLoop, requests: list[Request], arrivals: list[int]
) -> None:
    """Requests join at any step and leave at any step; each is prefilled while others decode."""
    waiting = sorted(zip(arrivals, range(len(requests)), strict=False))
    events: dict[int, list[Progress]] = {slot: [] for slot in range(len(requests))}
    step = 0
    while waiting or any(slot.request is not None for slot in loop.slots):
        while waiting and waiting[0][0] <= step:
            slot = waiting.pop(0)[1]
            loop.admit(slot, requests[slot])
        for event in loop.step():
            assert isinstance(event, Progress)
            events[event.slot].append(event)
        step += 1
    for slot, request in enumerate(requests):
        assert answer(events[slot]) == expected(request)


@pytest.mark.parametrize("length", [1, PREFILL_CHUNK, PREFILL_CHUNK + 1, 3 * PREFILL_CHUNK + 1])
def test_prompts_around_chunk_borders(loop: DecodeLoop, length: int) -> None:
    asked = request([3 * i % 250 for i in range(length)])
    events = list(loop.run(0, asked))
    assert answer(events) == expected(asked)
    lengths = [event.acceptance_length for event in events[1:]]
    assert lengths == acceptance_lengths(list(asked.tokens), 12, BLOCK_SIZE)


@pytest.mark.parametrize("block_size", [1, 2, BLOCK_SIZE])
@pytest.mark.parametrize("length", range(MAX_LEN - 2 * BLOCK_SIZE, MAX_LEN + 1))
def test_the_last_token_sits_exactly_at_the_contexts_end(loop: DecodeLoop, length: int, block_size: int) -> None:
    asked = request([7 * i % 250 for i in range(length)], max_new_tokens=100, block_size=block_size)
    tokens, reason = answer(list(loop.run(0, asked)))
    assert (tokens, reason) == expected(asked)
    assert reason == "length"
    assert length + len(tokens) == MAX_LEN + 1  # the last token needs no row


@pytest.mark.parametrize("new", range(1, BLOCK_SIZE + 4))
def test_exactly_max_new_tokens(loop: DecodeLoop, new: int) -> None:
    tokens, reason = answer(list(loop.run(0, request([5, 6, 7], max_new_tokens=new))))
    assert (len(tokens), reason) == (new, "length")


@pytest.mark.parametrize("index", range(2 * BLOCK_SIZE))
def test_a_stop_token_is_found_at_every_place_of_a_block(loop: DecodeLoop, index: int) -> None:
    prompt = [5, 6, 7]
    plain = plain_answer(prompt, 40, (), MAX_LEN)[0]
    asked = request(prompt, max_new_tokens=40, stop_token_ids=frozenset({plain[index]}))
    tokens, reason = answer(list(loop.run(0, asked)))
    assert reason == "stop"
    assert tokens == plain[: plain.index(plain[index]) + 1]


def test_a_stop_that_is_the_mask_token_is_not_seen_in_the_padding(loop: DecodeLoop, bundle: Bundle) -> None:
    mask = frozenset({bundle.manifest.mask_token_id})
    asked = request([5, 6, 7, 8, 9], max_new_tokens=30, stop_token_ids=mask)
    tokens, reason = answer(list(loop.run(0, asked)))
    assert (tokens, reason) == expected(asked)
    assert reason == "stop"
    assert len(tokens) > BLOCK_SIZE


def test_tokens_equal_to_the_mask_token_are_kept(loop: DecodeLoop, bundle: Bundle) -> None:
    asked = request([5, 6, 7], max_new_tokens=40)
    tokens, _ = answer(list(loop.run(0, asked)))
    assert tokens == expected(asked)[0]
    assert tokens.count(bundle.manifest.mask_token_id) > 1


def test_a_stop_wins_over_the_budget(loop: DecodeLoop) -> None:
    plain = plain_answer([5, 6, 7], 5, (), MAX_LEN)[0]
    at_the_end = request([5, 6, 7], max_new_tokens=5, stop_token_ids=frozenset({plain[4]}))
    assert answer(list(loop.run(0, at_the_end)))[1] == "stop"
    beyond = request([5, 6, 7], max_new_tokens=plain.index(plain[4]), stop_token_ids=frozenset({plain[4]}))
    assert answer(list(loop.run(0, beyond)))[1] == "length"


def test_a_shared_prefix_is_not_computed_again(loop: DecodeLoop, engine: HostEngine) -> None:
    first = request([11, 12, 13, 14, 15, 16, 17], max_new_tokens=9)
    tokens, _ = answer(list(loop.run(0, first)))
    follow_up = request([*first.tokens, *tokens, 70, 71])
    assert answer(list(loop.run(0, follow_up))) == expected(follow_up)
    # all rows but that of the last token, which never went through the target
    assert loop.slots[0].reused >= len(first.tokens) + len(tokens) - 1
    again = request(list(follow_up.tokens))
    assert answer(list(loop.run(0, again))) == expected(again)
    assert loop.slots[0].reused == len(follow_up.tokens) - 1  # the last one is always computed
    shorter = request([11, 12, 13, 99])
    assert answer(list(loop.run(0, shorter))) == expected(shorter)
    assert loop.slots[0].reused == 3


def test_rows_of_rejected_drafts_are_never_reused(loop: DecodeLoop) -> None:
    """A prompt that goes on as the drafter had wrongly guessed finds no row beyond the committed ones."""
    first = request([5, 6, 7], max_new_tokens=4)
    tokens, _ = answer(list(loop.run(0, first)))
    for wrong in range(0, 250, 50):
        follow_up = request([*first.tokens, *tokens, wrong, SCRIPT[7], SCRIPT[8]])
        assert answer(list(loop.run(0, follow_up))) == expected(follow_up)


def test_a_dropped_iterator_frees_its_slot_and_leaves_right_rows(loop: DecodeLoop) -> None:
    asked = request([21, 22, 23, 24, 25, 26, 27, 28], max_new_tokens=30)
    for steps in range(4):
        events = loop.run(0, asked)
        for _ in range(steps):
            next(events)
        events.close()
        assert answer(list(loop.run(0, asked))) == expected(asked)


def test_a_busy_slot_refuses_another_request(loop: DecodeLoop) -> None:
    events = loop.run(0, request([5]))
    next(events)
    with pytest.raises(RequestError, match="another generation is running"):
        next(loop.run(0, request([6])))
    assert len(list(events)) > 0


def test_a_finished_iterator_that_is_closed_late_does_not_end_the_next_request(loop: DecodeLoop) -> None:
    finished = loop.run(0, request([5], max_new_tokens=1))
    next(finished)  # its only token; not yet exhausted
    asked = request([6], max_new_tokens=20)
    events = loop.run(0, asked)
    seen = [next(events)]
    finished.close()
    assert answer(seen + list(events)) == expected(asked)


def test_a_request_with_non_finite_numbers_fails_alone(loop: DecodeLoop) -> None:
    loop.admit(0, request([5, 6]))
    loop.admit(1, request([POISON_ID]))
    failures = []
    events: list[Progress] = []
    while loop.slots[0].request is not None:
        for event in loop.step():
            if isinstance(event, Failure):
                failures.append(event)
            else:
                events.append(event)
    assert [failure.slot for failure in failures] == [1]
    assert "NaN" in str(failures[0].error)
    assert answer(events) == expected(request([5, 6]))


def test_a_failed_request_raises_and_its_rows_are_not_reused(loop: DecodeLoop, engine: HostEngine) -> None:
    """They are zeroed: a NaN that is left in a row poisons attention even where the mask hides it."""
    with pytest.raises(EngineError, match="NaN or infinity"):
        list(loop.run(0, request([5, 6, 7, POISON_ID])))
    assert not engine._arena.buffers["target_key_0"][: engine.limits.cache_rows].any()
    asked = request([5, 6, 7, 8])
    assert answer(list(loop.run(0, asked))) == expected(asked)
    assert loop.slots[0].reused == 0


INVALID: dict[str, tuple[Request, str]] = {
    "empty": (request([]), "the prompt is empty"),
    "too long": (request([1] * (MAX_LEN + 1)), rf"{MAX_LEN + 1} tokens, this engine holds {MAX_LEN}"),
    "id too large": (request([1, 260]), r"token id 260, outside of the vocabulary 0\.\.259"),
    "id negative": (request([-1]), "token id -1"),
    "stop id": (request([1], stop_token_ids=frozenset({300})), "stop_token_ids holds token id 300"),
    "no tokens": (request([1], max_new_tokens=0), "max_new_tokens must be at least 1, not 0"),
    "no block": (request([1], block_size=0), rf"block_size must be within 1\.\.{BLOCK_SIZE}"),
    "wide block": (request([1], block_size=BLOCK_SIZE + 1), rf"not {BLOCK_SIZE + 1}"),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_request_that_cannot_be_served_is_refused_before_any_work(loop: DecodeLoop, name: str) -> None:
    asked, message = INVALID[name]
    with pytest.raises(RequestError, match=message):
        loop.admit(0, asked)
    assert loop.slots[0].request is None


def test_prompts_are_computed_in_the_order_of_arrival(loop: DecodeLoop) -> None:
    long, short = request([9] * (3 * PREFILL_CHUNK)), request([8])
    loop.admit(2, long)
    loop.admit(0, short)
    while loop.slots[2].joining:
        assert loop.slots[0].joining
        loop.step()
    assert [event.slot for event in loop.prefill()] == [0]


@pytest.mark.parametrize("most_rows", [1, 2, PREFILL_CHUNK, PREFILL_CHUNK + 1])
def test_a_chunk_of_any_size_gives_the_same_answer(loop: DecodeLoop, most_rows: int) -> None:
    asked = request([7, 3, 11] * 4)
    loop.admit(1, asked)
    chunks, events = 0, list[Progress | Failure]()
    while loop.slots[1].joining:
        events += loop.prefill(most_rows)
        chunks += 1
    while loop.slots[1].request is not None:
        events += loop.step()
    assert chunks == -(-len(asked.tokens) // min(most_rows, PREFILL_CHUNK))
    assert answer([event for event in events if isinstance(event, Progress)]) == expected(asked)


def test_slots_stepped_one_by_one_get_what_they_get_together(loop: DecodeLoop) -> None:
    requests = [request([5 + i, 6, 7], max_new_tokens=20) for i in range(4)]
    events: dict[int, list[Progress]] = {slot: [] for slot in range(4)}
    for slot, asked in enumerate(requests):
        loop.admit(slot, asked)
    rounds = 0
    while any(slot.request is not None for slot in loop.slots):
        found = loop.step() if rounds % 3 else loop.prefill()
        for index in [slot.index for slot in loop.slots if slot.decoding and not rounds % 3]:
            found += loop.decode_alone(index)
        for event in found:
            assert isinstance(event, Progress)
            events[event.slot].append(event)
        rounds += 1
    for slot, asked in enumerate(requests):
        assert answer(events[slot]) == expected(asked)


class Interrupted(HostEngine):
    """Ctrl-C strikes once, after the third launch."""

    launches = 0

    def launch(self, block_size: int) -> None:
        super().launch(block_size)
        self.launches += 1
        if self.launches == 3:
            raise KeyboardInterrupt


def test_a_pass_that_is_interrupted_loses_no_slots_tokens(bundle: Bundle) -> None:
    interrupted = Interrupted(bundle, OnnxRuntimePrograms(bundle, Options()), host_limits(bundle, Options()))
    loop, other = DecodeLoop(interrupted), request([9, 8, 7], max_new_tokens=30)
    loop.admit(1, other)
    events = loop.step()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(3):
            events += loop.step()
    while loop.slots[1].request is not None:
        events += loop.step()
    assert answer([event for event in events if isinstance(event, Progress)]) == expected(other)


def test_a_request_after_an_interrupted_one_is_served(bundle: Bundle) -> None:
    interrupted = Interrupted(bundle, OnnxRuntimePrograms(bundle, Options()), host_limits(bundle, Options()))
    loop, asked = DecodeLoop(interrupted), request([5, 6, 7], max_new_tokens=30)
    with pytest.raises(KeyboardInterrupt):
        list(loop.run(0, asked))
    assert answer(list(loop.run(0, asked))) == expected(asked)
