"""The loop over an engine that runs ahead, against a plain loop that takes one token at a time.

A slot may stop, fail, reach the context's end, leave or be taken by another request while an iteration of it is
still in flight; the scripted pair's tokens depend on every cache row, so whatever is left behind shows.
"""

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engines.bundle import Bundle
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.errors import EngineError
from dflash_runtime.loop import DecodeLoop, Failure, Progress
from dflash_runtime.request import Request
from tests.engines.device.on_host import device_engine
from tests.engines.scripted_bundle import BLOCK_SIZE, MAX_LEN
from tests.engines.scripted_pair import POISON_ID, acceptance_lengths
from tests.runtime.test_loop import REQUEST, answer, expected, request

SLOTS = 3
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=[(1, True), (3, False)], ids=str)
def engine(request: pytest.FixtureRequest, bundle: Bundle) -> Iterator[DeviceEngine]:
    run_ahead, graphs = request.param
    engine = device_engine(bundle, slots=SLOTS, run_ahead=run_ahead, graphs=graphs)
    yield engine
    engine.close()


@pytest.fixture
def loop(engine: DeviceEngine) -> Iterator[DecodeLoop]:
    yield DecodeLoop(engine)
    for slot in range(SLOTS):
        engine.clear(slot)


@given(request=REQUEST)
@QUICK
def test_the_answer_is_the_plain_loops(loop: DecodeLoop, request: Request) -> None:
    events = list(loop.run(0, request))
    assert answer(events) == expected(request)
    assert request.block_size is not None
    lengths = [event.acceptance_length or 0 for event in events][1:]
    if all(len(request.tokens) + sum(lengths[: i + 1]) <= MAX_LEN for i in range(len(lengths))):
        assert lengths == acceptance_lengths(list(request.tokens), len(answer(events)[0]), request.block_size)


@given(
    st.lists(REQUEST, min_size=2, max_size=6),
    st.lists(st.integers(0, 12), min_size=6, max_size=6),
    st.sets(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=2),
)
@QUICK
def test_requests_come_and_go_and_each_gets_what_it_gets_alone(
    loop: DecodeLoop, requests: list[Request], arrivals: list[int], abandoned: set[tuple[int, int]]
) -> None:
    """More requests than slots: a slot is taken again at once, while an old iteration of it is in flight."""
    waiting = sorted(range(len(requests)), key=lambda i: arrivals[i])
    running: dict[int, int] = {}
    events = defaultdict[int, list[Progress]](list)
    for step in range(10_000):
        for slot in (s for s in range(SLOTS) if loop.slots[s].request is None and waiting):
            if arrivals[waiting[0]] <= step:
                running[slot] = waiting.pop(0)
                loop.admit(slot, requests[running[slot]])
        for event in loop.step():
            assert isinstance(event, Progress)
            events[running[event.slot]].append(event)
        gone = {index for index, passes in abandoned if len(events[index]) == passes}
        release(loop, {slot: requests[index] for slot, index in running.items() if index in gone})
        if not waiting and all(slot.request is None for slot in loop.slots):
            break
    for index, asked in enumerate(requests):
        assert_plain(events[index], asked)


def release(loop: DecodeLoop, running: dict[int, Request]) -> None:
    """Clients go away whose request still runs."""
    for slot, asked in running.items():
        if loop.slots[slot].request is asked:
            loop.release(slot)


def assert_plain(events: list[Progress], asked: Request) -> None:
    """The plain loop's answer, or its beginning where the client went away."""
    tokens, reason = answer(events)
    wanted = expected(asked)
    assert tokens == (wanted[0] if reason else wanted[0][: len(tokens)])
    assert reason in (wanted[1], None)


@pytest.mark.parametrize("block_size", [1, 3, BLOCK_SIZE])
@pytest.mark.parametrize("length", range(MAX_LEN - 2 * BLOCK_SIZE, MAX_LEN + 1))
def test_the_last_token_sits_exactly_at_the_contexts_end(loop: DecodeLoop, length: int, block_size: int) -> None:
    asked = request([7 * i % 250 for i in range(length)], max_new_tokens=100, block_size=block_size)
    assert answer(list(loop.run(0, asked))) == expected(asked)


def test_a_request_with_non_finite_numbers_fails_alone(loop: DecodeLoop) -> None:
    loop.admit(0, request([5, 6]))
    loop.admit(1, request([POISON_ID]))
    events: list[Progress] = []
    failed: list[int] = []
    while loop.slots[0].request is not None:
        for event in loop.step():
            if isinstance(event, Failure):
                failed.append(event.slot)
            else:
                events.append(event)
    assert failed == [1]
    assert answer(events) == expected(request([5, 6]))
    again = request([5, 6, 7])
    assert answer(list(loop.run(1, again))) == expected(again)


def test_a_pass_that_breaks_off_loses_no_slots_tokens(loop: DecodeLoop, engine: DeviceEngine) -> None:
    """Iterations in flight are lost with it; the device has gone on, and the slots begin again where they were."""
    asked = request([9, 8, 7], max_new_tokens=30)
    loop.admit(1, asked)
    events = [*loop.step(), *loop.step(), *loop.step()]
    while engine.can_launch:
        engine.launch(BLOCK_SIZE)
    with pytest.raises(EngineError, match="block size"):
        engine.discard()
        loop.slots[1].request = request([9, 8, 7], max_new_tokens=30, block_size=BLOCK_SIZE + 1)
        loop.step()
    loop.slots[1].request = asked
    while loop.slots[1].request is not None:
        events += loop.step()
    assert answer([event for event in events if isinstance(event, Progress)]) == expected(asked)
