"""The engine over the host device, call by call: masks between draft and accept, changes of shape, misuse, release."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.device.device import Event
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.device.host import HostDevice
from dflash_engines.device.layout import sizes
from dflash_engines.device.watchdog import Watchdog
from dflash_engines.errors import CaptureError, DeviceError, EngineError
from tests.engines.device.on_host import device_engine
from tests.engines.scripted_bundle import BLOCK_SIZE, MAX_LEN
from tests.engines.scripted_pair import draft_block, plain_tokens

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def shared(bundle: Bundle) -> Iterator[DeviceEngine]:
    engine = device_engine(bundle)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: DeviceEngine) -> Iterator[DeviceEngine]:
    yield shared
    shared.discard()
    for slot in range(3):
        shared.clear(slot)


def start(engine: DeviceEngine, slot: int, prompt: list[int]) -> int:
    anchor = int(engine.finish_prefill(slot, prompt, 0).sampled[0, 0])
    engine.place(slot, anchor, len(prompt), MAX_LEN)
    return anchor


def gained(engine: DeviceEngine, slot: int = 0) -> list[int]:
    found = engine.collect()
    return [int(t) for t in found.sampled[slot, : found.accepted[slot] + 1]]


def test_an_iteration_in_parts_finds_what_one_launch_finds(engine: DeviceEngine) -> None:
    tokens = [start(engine, 0, PROMPT)]
    for turn in range(6):
        if turn % 2:
            engine.launch(BLOCK_SIZE)
        else:
            blocks = engine.begin(BLOCK_SIZE)
            assert blocks[0].tolist() == draft_block([*PROMPT, *tokens[:-1]], tokens[-1], BLOCK_SIZE)
            engine.accept({})
        tokens += gained(engine)
    assert tokens == plain_tokens(PROMPT, len(tokens))


def test_the_block_size_may_change_while_iterations_are_in_flight(engine: DeviceEngine) -> None:
    tokens = [start(engine, 0, PROMPT)]
    sizes = [6, 1, 3, 3, 1, 6, 2, 2, 6]
    engine.launch(sizes[0])
    for size in sizes[1:]:
        engine.launch(size)
        tokens += gained(engine)
    tokens += gained(engine)
    assert tokens == plain_tokens(PROMPT, len(tokens))


def test_what_was_launched_before_a_slot_was_placed_anew_is_not_its_business(engine: DeviceEngine) -> None:
    start(engine, 0, PROMPT)
    engine.launch(BLOCK_SIZE)
    start(engine, 0, [90, 91])
    engine.launch(BLOCK_SIZE)
    assert engine.collect().active.tolist() == [False] * 3
    tokens = gained(engine)
    assert tokens == plain_tokens([90, 91], 1 + len(tokens))[1:]


def test_a_parked_slot_writes_no_row_of_the_next_prompt(engine: DeviceEngine) -> None:
    """It is prefilled chunk by chunk while the others decode."""
    start(engine, 0, PROMPT)
    others = [start(engine, 1, [90, 91])]
    prompt = [11 * i % 250 for i in range(30)]
    engine.launch(BLOCK_SIZE)
    others += gained(engine, 1)
    engine.park(0)
    for begin in range(0, 25, 5):
        engine.prefill(0, prompt[begin : begin + 5], begin)
        engine.launch(BLOCK_SIZE)
        others += gained(engine, 1)
    anchor = int(engine.finish_prefill(0, prompt[25:], 25).sampled[0, 0])
    engine.place(0, anchor, 30, MAX_LEN)
    engine.launch(BLOCK_SIZE)
    tokens = [anchor, *gained(engine)]
    assert tokens == plain_tokens(prompt, len(tokens))
    assert others == plain_tokens([90, 91], len(others))


def test_an_idle_slot_attends_to_one_row_and_writes_behind_the_context(engine: DeviceEngine) -> None:
    start(engine, 2, PROMPT)
    engine._ready(BLOCK_SIZE, split=False)  # all but the launch, after which the device knows by itself
    engine.device.synchronize()
    arrays = engine.arena.iteration_arrays("draft", sizes(engine.limits, slots=3, rows_in=6, rows_out=6))
    device = engine.device
    assert isinstance(device, HostDevice)
    assert device.view(arrays["length"])[:2].tolist() == [1, 1]
    assert device.view(arrays["start"])[:2].tolist() == [MAX_LEN, MAX_LEN]


def test_after_a_discard_slots_go_on_from_what_was_collected(engine: DeviceEngine) -> None:
    tokens = [start(engine, 0, PROMPT)]
    engine.launch(BLOCK_SIZE)
    engine.launch(BLOCK_SIZE)
    tokens += gained(engine)
    engine.discard()
    for _ in range(3):
        engine.launch(BLOCK_SIZE)
        tokens += gained(engine)
    assert tokens == plain_tokens(PROMPT, len(tokens))


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda e: e.launch(6), "no slot is placed"),
        (lambda e: e.collect(), "nothing was launched"),
        (lambda e: e.accept({}), "nothing was begun"),
        (lambda e: (start(e, 0, [5]), e.launch(7)), r"block size 7 is not within 1\.\.6"),
        (lambda e: (start(e, 0, [5]), e.launch(2), e.launch(2), e.launch(2)), "collect it before the next launch"),
        (lambda e: (start(e, 0, [5]), e.launch(2), e.begin(2)), "collect it before the next one begins"),
        (lambda e: (start(e, 0, [5]), e.begin(2), e.park(0)), "accept or discard it first"),
        (lambda e: (start(e, 0, [5]), e.begin(2), e.prefill(1, [5], 0)), "accept or discard it first"),
    ],
)
def test_misuse_is_an_error(engine: DeviceEngine, misuse: Callable[[DeviceEngine], object], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        misuse(engine)


def test_time_goes_to_the_programs(engine: DeviceEngine) -> None:
    before = engine.timing
    start(engine, 0, PROMPT)
    engine.launch(BLOCK_SIZE)
    engine.collect()
    after = engine.timing
    for program in ("prefill", "draft", "target", "accept"):
        assert getattr(after, program) > getattr(before, program), program


def test_warming_records_every_shape_and_leaves_slots_alone(bundle: Bundle) -> None:
    engine = device_engine(bundle, slots=2, batches=(2,))
    tokens = [start(engine, 1, PROMPT)]
    engine.launch(BLOCK_SIZE)
    tokens += gained(engine, 1)
    engine.warm(["accept"])
    assert engine.counts.captures == 2  # the block size, and plain decoding
    for _ in range(3):
        engine.launch(BLOCK_SIZE)
        tokens += gained(engine, 1)
    assert tokens == plain_tokens(PROMPT, len(tokens))
    assert engine.counts.captures == 2
    engine.close()


def test_nothing_is_left_of_a_closed_engine(bundle: Bundle) -> None:
    device = HostDevice()
    engine = device_engine(bundle, device=device)
    start(engine, 0, PROMPT)
    engine.launch(BLOCK_SIZE)
    engine.close()
    engine.close()
    assert not device.live


def test_waiting_or_allocating_while_recording_is_refused() -> None:
    device = HostDevice()

    def allocate() -> None:
        device.allocate(1)

    for work in (device.synchronize, allocate):
        with pytest.raises(CaptureError, match="not permitted while capturing"):
            device.capture(work)
    device.synchronize()  # it records no more


def test_an_event_that_was_recorded_again_waits_for_the_latest_recording() -> None:
    device = HostDevice()
    event = device.event()
    device.record(event)
    buffer = device.allocate(8)
    device.zero(buffer, 0, 8)
    device.record(event)
    assert [event.done() for _ in range(3)] == [False, False, True]


def test_values_may_change_as_soon_as_they_were_written() -> None:
    device = HostDevice()
    buffer, pinned, values = device.allocate(8), device.pin(8), np.arange(8, dtype=np.uint8)
    device.write(buffer, 0, values)
    values[:] = 0
    device.read(pinned, 0, buffer, 0, 8)
    assert pinned.array.tolist() == [255] * 8  # not yet
    device.synchronize()
    assert pinned.array.tolist() == list(range(8))


class Never(Event):
    def done(self) -> bool:
        return False


def test_a_wait_that_takes_too_long_gives_the_device_up() -> None:
    device = HostDevice()
    watchdog = Watchdog(device, patience=0.05)
    with pytest.raises(DeviceError, match=r"did not finish launched work within 0\.05 s"):
        watchdog.wait(Never())
    assert device.lost is not None
    with pytest.raises(DeviceError, match="restart it"):
        device.synchronize()
    watchdog.release()


def test_a_call_that_never_returns_ends_the_process_with_its_reason() -> None:
    from threading import Event as Flag

    told, said = Flag(), list[str]()

    def end(reason: str) -> None:
        said.append(reason)
        told.set()

    watchdog = Watchdog(HostDevice(), patience=0.05, on_hang=end)
    with watchdog.over_call():
        assert told.wait(10)
    assert "a call into its driver" in said[0]


def test_an_engine_tells_its_health(bundle: Bundle) -> None:
    engine = device_engine(bundle)
    assert engine.health is None
    engine.device.lose("ECC fault")
    assert engine.health == "ECC fault"
    with pytest.raises(DeviceError, match="ECC fault"):
        engine.prefill(0, [5, 6], 0)
    engine.close()


def test_programs_of_no_bundle_have_none(bundle: Bundle) -> None:
    engine = device_engine(bundle)
    engine.pair = replace(engine.pair, bundle=None)
    with pytest.raises(EngineError, match="come from no bundle"):
        _ = engine.bundle
    engine.close()
