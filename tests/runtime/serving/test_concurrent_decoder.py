"""The thread, and the two ways to read: from threads and from event loops."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import ref

import pytest

from dflash_engines.errors import DeviceError, EngineError, RequestError
from dflash_engines.host_engine import HostEngine
from dflash_runtime.serving import ClosedError, ConcurrentDecoder, DeadlineError, QueueFullError
from dflash_runtime.serving.generation import Urgency
from tests.engines.scripted_bundle import MAX_LEN
from tests.engines.scripted_pair import POISON_ID
from tests.runtime.serving.requests import answer_of, request, solo

LONG = request([5, 6, 7], max_new_tokens=MAX_LEN)
DEADLINE = 20.0  # seconds that a hanging test may take


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds; a test that waits in vain fails."""
    clock = threading.Event()
    for _ in range(int(DEADLINE / 0.01)):
        if holds():
            return
        clock.wait(0.01)
    pytest.fail("it never came to hold")


def test_threads_at_once_get_what_each_gets_alone(decoder: ConcurrentDecoder) -> None:
    requests = [request([i, 6, 7, i], max_new_tokens=5 + i) for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        completions = list(pool.map(decoder.complete, requests))
    assert [answer_of(c) for c in completions] == [solo(r) for r in requests]


def test_coroutines_at_once_get_what_each_gets_alone(decoder: ConcurrentDecoder) -> None:
    requests = [request([i, 6, 7, i], max_new_tokens=5 + i) for i in range(24)]

    async def read(i: int) -> tuple[list[int], str]:
        stream = decoder.stream(requests[i])
        tokens = [token async for step in stream for token in step.token_ids]
        assert stream.completion is not None
        assert tokens == list(stream.completion.token_ids)
        return answer_of(stream.completion)

    async def read_all() -> list[tuple[list[int], str]]:
        return await asyncio.gather(*(read(i) for i in range(len(requests))))

    assert asyncio.run(read_all()) == [solo(r) for r in requests]


def test_a_request_is_checked_before_it_is_served(decoder: ConcurrentDecoder) -> None:
    asked = decoder.request([5, 6, 7], max_new_tokens=9, stop_token_ids=())
    assert answer_of(decoder.complete(asked)) == answer_of(decoder.complete(asked)) == solo(asked)
    with pytest.raises(RequestError, match="max_new_tokens must be at least 1"):
        decoder.request([5], max_new_tokens=0)


def test_steps_are_the_answer_piece_by_piece(decoder: ConcurrentDecoder) -> None:
    stream = decoder.generate(LONG)
    steps = list(stream)
    assert stream.completion is not None
    assert "".join(step.text for step in steps) == stream.completion.text
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert list(stream) == []


def test_a_stream_that_is_dropped_frees_its_slot(decoder: ConcurrentDecoder, slow: None) -> None:
    streams = [decoder.generate(LONG) for _ in range(3)]
    for stream in streams:
        next(stream)
    del stream
    streams.clear()
    gc.collect()
    eventually(lambda: decoder.queue.running == 0)


def test_a_task_that_is_cancelled_frees_its_slot(decoder: ConcurrentDecoder, slow: None) -> None:
    async def drop() -> None:
        task = asyncio.create_task(decoder.stream(LONG).finish())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(drop())
    eventually(lambda: decoder.queue.running == 0)


def test_an_event_loop_that_is_closed_does_not_disturb_the_others(decoder: ConcurrentDecoder, slow: None) -> None:
    kept = []

    async def leave() -> None:
        kept.append(decoder.stream(LONG))

    asyncio.run(leave())
    assert answer_of(decoder.complete(LONG)) == solo(LONG)
    assert decoder.alive


def test_an_error_is_raised_where_the_answer_is_read(decoder: ConcurrentDecoder) -> None:
    with pytest.raises(EngineError, match="NaN"):
        decoder.complete(request([POISON_ID]))

    async def read() -> None:
        await decoder.stream(request([POISON_ID])).finish()

    with pytest.raises(EngineError, match="NaN"):
        asyncio.run(read())


def test_an_error_is_raised_again_for_whoever_asks_again(decoder: ConcurrentDecoder) -> None:
    stream = decoder.generate(request([POISON_ID]))
    for _ in range(2):
        with pytest.raises(EngineError, match="NaN"):
            next(stream)


def test_a_deadline(decoder: ConcurrentDecoder, slow: None) -> None:
    with pytest.raises(DeadlineError, match="time was up"):
        decoder.complete(LONG, Urgency(timeout=0.05))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be a number of seconds above 0"):
        Urgency(timeout=timeout)


def test_a_full_queue_refuses_at_once(engine: HostEngine, slow: None) -> None:
    with ConcurrentDecoder(engine, queue_size=1) as decoder:
        streams = [decoder.generate(LONG) for _ in range(4)]
        with pytest.raises(QueueFullError):
            decoder.generate(LONG)
        assert [answer_of(stream.finish()) for stream in streams] == [solo(LONG)] * 4


def test_closing_finishes_what_was_taken_in(engine: HostEngine) -> None:
    decoder = ConcurrentDecoder(engine)
    streams = [decoder.generate(LONG) for _ in range(8)]
    decoder.close()
    assert [answer_of(stream.finish()) for stream in streams] == [solo(LONG)] * 8
    with pytest.raises(ClosedError, match="shutting down"):
        decoder.generate(LONG)
    decoder.close()


def test_closing_without_patience_ends_what_is_left(engine: HostEngine, slow: None) -> None:
    decoder = ConcurrentDecoder(engine)
    streams = [decoder.generate(LONG) for _ in range(8)]
    next(streams[0])
    decoder.close(drain=0)
    assert not decoder.alive
    with pytest.raises(ClosedError, match="before the answer was whole"):
        for stream in streams:
            stream.finish()


def test_a_decoder_that_is_dropped_ends_its_thread(engine: HostEngine) -> None:
    decoder = ConcurrentDecoder(engine)
    decoder.complete(request([5]))
    thread, gone = decoder._thread._thread, ref(decoder)
    del decoder
    gc.collect()
    assert gone() is None
    thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_a_forked_process_is_told_to_load_for_itself(decoder: ConcurrentDecoder) -> None:
    decoder.complete(request([5]))
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            decoder.generate(request([5]))
        except ClosedError as fault:
            os.write(writable, str(fault).encode())
        decoder.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert b"load the bundle after forking" in os.read(readable, 1000)
    assert answer_of(decoder.complete(LONG)) == solo(LONG)


SCRIPT = """
import sys
from dflash_runtime.serving import ConcurrentDecoder
decoder = ConcurrentDecoder.load(sys.argv[1], slots=2)
request = decoder.request([5, 6, 7], max_new_tokens=40, stop_token_ids=())
streams = [decoder.generate(request) for _ in range(6)]
next(streams[0])
"""


def test_a_process_may_end_in_the_midst_of_its_work(scripted_folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(scripted_folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_our_own_ends_every_answer_and_hangs_none(
    engine: HostEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(block_size: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(engine, "launch", fault)
    decoder = ConcurrentDecoder(engine)
    streams = [decoder.generate(LONG) for _ in range(8)]
    for stream in streams:
        with pytest.raises(ClosedError, match="a fault of its own"):
            stream.finish()
    eventually(lambda: not decoder.alive)
    with pytest.raises(ClosedError):
        decoder.generate(LONG)
    for slot in range(3):
        engine.park(slot)
    engine.discard()


def test_a_device_that_is_lost_ends_the_service(engine: HostEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(block_size: int) -> None:
        raise DeviceError("it fell off the bus")

    monkeypatch.setattr(engine, "launch", lose)
    decoder = ConcurrentDecoder(engine)
    streams = [decoder.generate(LONG) for _ in range(4)]
    for stream in streams:
        with pytest.raises(ClosedError, match="lost its device: it fell off the bus"):
            stream.finish()
    eventually(lambda: not decoder.alive)
    for slot in range(3):
        engine.park(slot)
    engine.discard()
