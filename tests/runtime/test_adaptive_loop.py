"""Block sizes that change from pass to pass: never another token, and one size for all who share a pass."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.errors import RequestError
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_engines.sampling import SamplingParameters
from dflash_runtime.block_size import BlockSizes
from dflash_runtime.cost_table import CostTable
from dflash_runtime.loop import DecodeLoop, Progress
from dflash_runtime.request import Request
from tests.engines.scripted_bundle import BLOCK_SIZE, MAX_LEN
from tests.engines.scripted_pair import POISON_ID, plain_answer

SIZES = tuple(range(1, BLOCK_SIZE + 1))
SLOTS = 3
FREE = st.builds(
    lambda tokens, new, steps, asked: Request(
        tokens=tuple(tokens),
        max_new_tokens=new,
        stop_token_ids=frozenset(),
        block_size=asked,
        sampling=SamplingParameters(denoise_steps=steps),
    ),
    st.lists(st.integers(0, POISON_ID - 1), min_size=1, max_size=MAX_LEN),
    st.integers(1, MAX_LEN),
    st.integers(1, 4),
    st.none() | st.none() | st.sampled_from(SIZES),
)
MANY = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


def table() -> CostTable:
    """Drafting costs little: there is something to choose."""
    rows = (tuple(10.0 + size for size in SIZES),)
    accept = ((tuple(0.1 * size for size in SIZES),),)
    draft = (((0.0, *[0.1] * (len(SIZES) - 1)),),)
    return CostTable(slots=(1,), lengths=(1,), block_sizes=SIZES, draft=draft, target=(rows,), accept=accept)


def counted(calls: list[int]) -> Callable[[], CostTable]:
    """Makes tables, and notes each call."""

    def costs() -> CostTable:
        calls.append(len(calls))
        return table()

    return costs


class Erratic(BlockSizes):
    """Any size, by chance; it keeps what it chose."""

    def __init__(self, seed: int) -> None:
        super().__init__(table())
        self.random, self.chosen = random.Random(seed), list[int]()

    def choose(self, *_given: object, **_named: object) -> int:
        self.chosen.append(self.random.choice(SIZES))
        return self.chosen[-1]


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> HostEngine:
    limits = replace(host_limits(bundle, Options(slots=SLOTS)), block_sizes=SIZES[1:])
    return HostEngine(bundle, OnnxRuntimePrograms(bundle, Options()), limits)


@pytest.fixture
def loop(engine: HostEngine) -> Iterator[DecodeLoop]:
    yield DecodeLoop(engine, table)
    for slot in range(SLOTS):
        engine.clear(slot)


def request(tokens: list[int], block_size: int | None = None, new: int = 30) -> Request:
    return Request(tokens=tuple(tokens), max_new_tokens=new, stop_token_ids=frozenset(), block_size=block_size)


def expected(request: Request) -> list[int]:
    return plain_answer(list(request.tokens), request.max_new_tokens, (), MAX_LEN)[0]


def run_together(loop: DecodeLoop, requests: list[Request]) -> list[list[Progress]]:
    """Each request's passes; the second joins later, and so on."""
    events: list[list[Progress]] = [[] for _ in requests]
    waiting = list(enumerate(requests))
    while waiting or any(slot.request is not None for slot in loop.slots):
        if waiting:
            loop.admit(*waiting.pop(0))
        for event in loop.step():
            assert isinstance(event, Progress)
            events[event.slot].append(event)
    return events


@given(requests=st.lists(FREE, min_size=1, max_size=SLOTS), seed=st.integers(0, 2**32))
@MANY
def test_no_sequence_of_block_sizes_and_denoise_steps_changes_a_token(
    loop: DecodeLoop, requests: list[Request], seed: int
) -> None:
    loop._block_sizes = Erratic(seed)
    for found, asked in zip(run_together(loop, requests), requests, strict=True):
        assert [token for event in found for token in event.token_ids] == expected(asked)


@given(requests=st.lists(FREE, min_size=1, max_size=SLOTS))
@MANY
def test_nor_does_the_real_choice(loop: DecodeLoop, requests: list[Request]) -> None:
    for found, asked in zip(run_together(loop, requests), requests, strict=True):
        assert [token for event in found for token in event.token_ids] == expected(asked)


def test_a_pass_has_the_size_that_was_chosen(loop: DecodeLoop) -> None:
    loop._block_sizes = erratic = Erratic(3)
    events = list(loop.run(0, request([5, 6, 7])))
    assert [event.block_size for event in events[1:]] == erratic.chosen
    assert len(set(erratic.chosen)) > 2


def test_a_neighbour_that_asks_for_more_gets_it(loop: DecodeLoop) -> None:
    loop._block_sizes = erratic = Erratic(4)
    events = run_together(loop, [request([5, 6, 7], 4), request([8, 9], new=10)])
    sizes = {event.block_size for event in events[1][1:]}
    assert min(size for size in sizes if size is not None) >= 4
    assert min(erratic.chosen) < 4


def test_an_engine_is_measured_when_a_request_first_leaves_the_choice_to_it(engine: HostEngine) -> None:
    calls: list[int] = []
    loop = DecodeLoop(engine, counted(calls))
    list(loop.run(0, request([5, 6, 7], 2)))
    assert not calls
    list(loop.run(0, request([5, 6, 7])))
    list(loop.run(1, request([5, 6, 7])))
    assert len(calls) == 1


def test_it_is_not_measured_while_others_decode(engine: HostEngine) -> None:
    """Their rows would be lost. Until it is idle again, the largest block is drafted."""
    calls: list[int] = []
    loop = DecodeLoop(engine, counted(calls))
    first, second = request([5, 6, 7], 2), request([8, 9])
    found = run_together(loop, [first, second])
    assert [token for event in found[0] for token in event.token_ids] == expected(first)
    assert [token for event in found[1] for token in event.token_ids] == expected(second)
    assert {event.block_size for event in found[1][1:]} == {BLOCK_SIZE}
    assert not calls
    list(loop.run(2, second))
    assert len(calls) == 1


def test_rows_that_the_measurement_overwrote_are_not_reused(engine: HostEngine) -> None:
    loop, asked = DecodeLoop(engine), request([5, 6, 7, 8, 9], 2)
    list(loop.run(0, asked))
    free = replace(asked, block_size=None)
    found = [token for event in loop.run(0, free) for token in event.token_ids]
    assert loop.slots[0].reused == 0
    assert found == expected(asked)


def test_several_steps_are_refused_by_an_engine_that_drafts_in_one(
    engine: HostEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostEngine, "denoises", False)
    several = replace(request([5]), sampling=SamplingParameters(denoise_steps=2))
    with pytest.raises(RequestError, match="leave denoise_steps at 1"):
        DecodeLoop(engine).admit(0, several)
    assert DecodeLoop(engine).slots[0].request is None


def test_drawn_drafts_are_refused_by_a_bundle_whose_drafter_cannot_draw(loop: DecodeLoop) -> None:
    drawn = replace(request([5]), sampling=SamplingParameters(draft_temperature=0.5))
    with pytest.raises(RequestError, match=r"no program 'draft_noise'.*--draft-noise"):
        loop.admit(0, drawn)
