"""Requests come and go at any time, in any company; each gets what a plain loop gives it alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engines.bundle import Bundle
from dflash_engines.engine import Engine, Iteration
from dflash_engines.errors import EngineError, RequestError
from dflash_engines.host_engine import HostEngine
from dflash_runtime.serving.errors import CancelledError, DeadlineError, QueueFullError
from dflash_runtime.serving.observer import NoObserver
from dflash_runtime.serving.pacer import Pacer
from dflash_runtime.serving.scheduler import Scheduler
from dflash_runtime.serving.waiting_queue import WaitingQueue
from tests.engines.device.on_host import device_engine
from tests.engines.scripted_bundle import MAX_LEN, PREFILL_CHUNK
from tests.engines.scripted_pair import POISON_ID
from tests.runtime.serving.conftest import SLOTS
from tests.runtime.serving.requests import REQUESTS, Reader, request

MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=["over host memory", "running ahead"])
def engine(request: pytest.FixtureRequest, bundle: Bundle, engine: HostEngine) -> Iterator[Engine]:
    """Both kinds; what a test leaves in the caches must not matter to the next one."""
    if request.param == "over host memory":
        yield engine
    else:
        ahead = device_engine(bundle, slots=SLOTS, run_ahead=1, graphs=True)
        yield ahead
        ahead.close()


class Bench:
    """A scheduler that a test drives by hand."""

    def __init__(self, engine: Engine, size: int = 32) -> None:
        engine.discard()  # what the bench before may have left in flight
        self.queue = WaitingQueue(slots=SLOTS, size=size)
        pacer = Pacer(prefill_chunk=PREFILL_CHUNK, target_gap=0.2)
        self.scheduler = Scheduler(engine, queue=self.queue, pacer=pacer, observer=NoObserver())
        self.steps = 0

    def put(self, *readers: Reader) -> None:
        self.queue.put([reader.generation for reader in readers])

    def run(self, on_step: Callable[[int], object] = lambda step: None) -> None:
        """Step until all are served; `on_step` sees the number of each step first."""
        self.steps = 0
        while True:
            on_step(self.steps)
            self.scheduler.step()
            self.steps += 1
            if self.scheduler.idle:
                return


@pytest.fixture
def bench(engine: Engine) -> Bench:
    return Bench(engine)


@given(
    st.lists(
        st.tuples(REQUESTS, st.integers(0, 8), st.integers(-1, 1), st.none() | st.integers(0, 9)),
        min_size=1,
        max_size=8,
    )
)
@MANY
def test_every_request_gets_in_company_what_it_gets_alone(bench: Bench, arrivals: list[Any]) -> None:
    """Requests, arrivals, priorities and cancellations at random, on a scheduler with a history."""
    readers = [(Reader(asked, priority=priority), at, cancel) for asked, at, priority, cancel in arrivals]

    def on_step(step: int) -> None:
        for reader, at, cancel in readers:
            if at == step:
                bench.put(reader)
            if cancel is not None and at + cancel == step:
                reader.generation.cancel()

    for step in range(9):
        on_step(step)
        bench.scheduler.step()
    bench.run(lambda step: on_step(9 + step))
    for reader, _, cancel in readers:
        if isinstance(reader.end, CancelledError):
            assert cancel is not None
        else:
            assert reader.right
    assert bench.queue.running == 0


def test_more_requests_than_slots_are_served_first_come(bench: Bench) -> None:
    readers = [Reader(request([i, 7], max_new_tokens=10)) for i in range(3 * SLOTS)]
    bench.put(*readers)
    bench.run()
    assert all(reader.right for reader in readers)
    admitted = [reader.generation.admitted for reader in readers]
    assert admitted == sorted(time for time in admitted if time is not None)


def test_a_smaller_priority_number_goes_first(bench: Bench) -> None:
    readers = [Reader(request([i, 7]), priority=priority) for i, priority in enumerate((5, 5, 5, 5, 0, -3))]
    bench.put(*readers)
    bench.run()
    order = sorted(range(6), key=lambda i: readers[i].generation.admitted or 0.0)
    assert order == [5, 4, 0, 1, 2, 3]


def test_a_cancelled_request_frees_its_slot_at_the_next_iteration(bench: Bench) -> None:
    running = [Reader(request([i, 7], max_new_tokens=40)) for i in range(SLOTS)]
    waiting = Reader(request([99], max_new_tokens=1))
    bench.put(*running, waiting)
    while any(reader.generation.told is None for reader in running):
        bench.scheduler.step()
    assert waiting.generation.admitted is None
    told = len(running[1].steps)
    running[1].generation.cancel()
    bench.scheduler.step()
    assert waiting.generation.admitted is not None
    assert isinstance(running[1].end, CancelledError)
    assert len(running[1].steps) == told
    bench.run()
    assert running[0].right
    assert running[2].right
    assert waiting.right


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_a_request_cancelled_while_waiting_or_in_its_prefill_ends(bench: Bench, steps: int) -> None:
    long = Reader(request([9] * (4 * PREFILL_CHUNK)))
    bench.put(long)
    for _ in range(steps):
        bench.scheduler.step()
    long.generation.cancel()
    bench.run()
    assert isinstance(long.end, CancelledError)
    after = Reader(request([9] * (4 * PREFILL_CHUNK)))
    bench.put(after)
    bench.run()
    assert after.right


def test_a_deadline_ends_a_waiting_request_and_a_running_one(bench: Bench) -> None:
    running = [Reader(request([i, 7], max_new_tokens=40), timeout=60) for i in range(SLOTS)]
    waiting = Reader(request([99]), timeout=60)
    bench.put(*running, waiting)
    bench.scheduler.step()
    running[0].generation.arrived -= 61
    waiting.generation.arrived -= 61
    bench.scheduler.step()
    assert isinstance(running[0].end, DeadlineError)
    assert isinstance(waiting.end, DeadlineError)
    bench.run()
    assert running[1].right
    assert running[2].right


def test_the_slot_with_the_longest_shared_prefix_is_taken(bench: Bench) -> None:
    prompts = ([5] * 20, [6] * 20, [5] * 10 + [6] * 10)
    first = [Reader(request(prompt, max_new_tokens=2)) for prompt in prompts]
    bench.put(*first)
    bench.run()
    follow_ups = [Reader(request([*prompt, 7, 8], max_new_tokens=2)) for prompt in reversed(prompts)]
    bench.put(*follow_ups)
    bench.run()
    assert all(reader.right for reader in (*first, *follow_ups))
    assert all(reader.completion.reused_tokens >= 20 for reader in follow_ups)


def test_a_fresh_slot_is_the_one_used_longest_ago(bench: Bench) -> None:
    first = [Reader(request([token] * 12, max_new_tokens=1)) for token in (10, 11, 12)]
    for reader in first:
        bench.put(reader)
        bench.run()
    for token in (13, 14):  # take the places of 10 and 11
        bench.put(Reader(request([token] * 12, max_new_tokens=1)))
        bench.run()
    again = Reader(request([12] * 12, max_new_tokens=1))
    bench.put(again)
    bench.run()
    assert again.completion.reused_tokens == 11


def test_a_full_queue_says_when_to_come_again(engine: Engine) -> None:
    bench = Bench(engine, size=2)
    taken = [Reader(request([i])) for i in range(SLOTS + 2)]
    bench.put(*taken)
    with pytest.raises(QueueFullError, match=f"{SLOTS + 2} requests are in flight") as full:
        bench.put(Reader(request([9])))
    assert full.value.retry_after >= 1
    bench.run()
    assert all(reader.right for reader in taken)
    bench.put(Reader(request([9])))
    bench.run()


def test_several_are_taken_in_together_or_not_at_all(engine: Engine) -> None:
    bench = Bench(engine, size=2)
    bench.put(Reader(request([1])), Reader(request([2])))
    with pytest.raises(QueueFullError):
        bench.put(*(Reader(request([i])) for i in range(4)))
    assert len(bench.queue) == 2
    with pytest.raises(RequestError, match="6 answers at once are more than the 5"):
        bench.put(*(Reader(request([i])) for i in range(6)))
    bench.run()


def test_a_prompt_never_holds_up_others_by_more_than_one_chunk(bench: Bench) -> None:
    runs = Reader(request([5, 7], max_new_tokens=40, block_size=1))
    bench.put(runs)
    while runs.generation.told is None:
        bench.scheduler.step()
    long = Reader(request([9] * (MAX_LEN - 1), max_new_tokens=1))
    bench.put(long)
    before, steps = len(runs.steps), 0
    while long.generation.told is None:
        bench.scheduler.step()
        steps += 1
        assert len(runs.steps) == before + steps
    assert steps >= (MAX_LEN - 1) // PREFILL_CHUNK


class Flaky:
    """An engine whose calls fail when told to; all else is the real one's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.placed = set[int]()
        self.fail_decoding: Callable[[], bool] = lambda: False
        self.fail_prefill: Callable[[int], bool] = lambda slot: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def place(self, slot: int, *given: Any, **named: Any) -> None:
        self.placed.add(slot)
        self._engine.place(slot, *given, **named)

    def park(self, slot: int) -> None:
        self.placed.discard(slot)
        self._engine.park(slot)

    def launch(self, block_size: int) -> None:
        self._engine.launch(block_size)
        if self.fail_decoding():
            raise EngineError("the device is on fire")

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> None:
        if self.fail_prefill(slot):
            raise EngineError("the device is on fire")
        self._engine.prefill(slot, tokens, start)

    def finish_prefill(self, slot: int, *given: Any, **named: Any) -> Iteration:
        if self.fail_prefill(slot):
            raise EngineError("the device is on fire")
        return self._engine.finish_prefill(slot, *given, **named)


@pytest.fixture
def flaky(engine: Engine) -> Flaky:
    return Flaky(engine)


@pytest.fixture
def flaky_bench(flaky: Flaky) -> Bench:
    return Bench(flaky)


@pytest.mark.parametrize("at", range(1, 8, 2))
def test_a_decoding_call_that_fails_once_loses_nothing(flaky: Flaky, flaky_bench: Bench, at: int) -> None:
    calls = iter(range(1000))
    flaky.fail_decoding = lambda: next(calls) == at
    readers = [Reader(request([i, 7], max_new_tokens=30)) for i in range(SLOTS + 2)]
    flaky_bench.put(*readers)
    flaky_bench.run()
    assert next(calls) > at
    assert all(reader.right for reader in readers)


@pytest.mark.parametrize("at", range(4))
def test_a_prefill_call_that_fails_once_loses_nothing(flaky: Flaky, flaky_bench: Bench, at: int) -> None:
    calls = iter(range(1000))
    flaky.fail_prefill = lambda slot: next(calls) == at
    readers = [Reader(request([i] * 12, max_new_tokens=30)) for i in range(SLOTS + 2)]
    flaky_bench.put(*readers)
    flaky_bench.run()
    assert next(calls) > at
    assert all(reader.right for reader in readers)


def test_a_slot_that_fails_again_and_again_ends_alone(flaky: Flaky, flaky_bench: Bench) -> None:
    flaky.fail_decoding = lambda: 1 in flaky.placed
    readers = [Reader(request([i, 7], max_new_tokens=30)) for i in range(SLOTS)]
    flaky_bench.put(*readers)
    flaky_bench.run()
    assert isinstance(readers[1].end, EngineError)
    assert readers[0].right
    assert readers[2].right
    flaky.fail_decoding = lambda: False
    after = Reader(request([1, 7], max_new_tokens=30))
    flaky_bench.put(after)
    flaky_bench.run()
    assert after.right


def test_a_prompt_that_fails_again_and_again_ends_alone(flaky: Flaky, flaky_bench: Bench) -> None:
    flaky.fail_prefill = lambda slot: slot == 0
    readers = [Reader(request([i] * 12, max_new_tokens=30)) for i in range(SLOTS)]
    flaky_bench.put(*readers)
    flaky_bench.run()
    assert isinstance(readers[0].end, EngineError)
    assert readers[1].right
    assert readers[2].right


def test_an_engine_that_is_gone_ends_all_and_hangs_none(flaky: Flaky, flaky_bench: Bench) -> None:
    flaky.fail_decoding = lambda: True
    readers = [Reader(request([i, 7], max_new_tokens=30)) for i in range(2 * SLOTS)]
    flaky_bench.put(*readers)
    flaky_bench.run()
    assert all(isinstance(reader.end, EngineError) for reader in readers)


def test_numbers_that_are_not_finite_end_one_request_alone(bench: Bench) -> None:
    readers = [Reader(request(tokens, max_new_tokens=20)) for tokens in ([5, 6], [7, POISON_ID], [8])]
    bench.put(*readers)
    bench.run()
    assert isinstance(readers[1].end, EngineError)
    assert "NaN" in str(readers[1].end)
    assert readers[0].right
    assert readers[2].right


def test_a_stop_string_frees_the_slot(bench: Bench) -> None:
    free = Reader(request([5, 6, 7], max_new_tokens=30))
    bench.put(free)
    bench.run()
    stop = free.completion.text[4:6]
    stopped = Reader(request([5, 6, 7], max_new_tokens=30, stop_strings=(stop,)))
    bench.put(stopped)
    bench.run()
    assert stopped.completion.finish_reason == "stop"
    assert stopped.completion.text == free.completion.text[: free.completion.text.index(stop)]
    again = Reader(request([*stopped.request.tokens, *stopped.completion.token_ids, 9]))
    bench.put(again)
    bench.run()
    assert again.right
