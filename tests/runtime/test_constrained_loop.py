"""Structured output through the loop and both engines, against a plain search: one token at a time, no library.

The scripted pair's logits are 1 for its token and 0 for the others: where the grammar refuses that token, the first
allowed one is taken. Its tokens are bytes, so what a choice allows can be looked up.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.controls import Controls
from dflash_engines.engine import Engine
from dflash_engines.errors import RequestError
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_engines.sampling import SamplingParameters
from dflash_runtime.loop import DecodeLoop, Failure, Progress
from dflash_runtime.request import Request
from dflash_runtime.structured.constraint import Constraint, Masks
from dflash_runtime.structured.grammars import Grammars, LlguidanceConstraint
from dflash_runtime.structured.response_format import structured_output
from tests.engines.device.on_host import device_engine
from tests.engines.scripted_bundle import BLOCK_SIZE, MAX_LEN, byte_tokenizer
from tests.engines.scripted_onnx import MASK_WORDS
from tests.engines.scripted_pair import VOCAB_SIZE, checksum, plain_answer, target_token
from tests.runtime.test_loop import answer, expected, request

SLOTS = 3
END = 0  # <|end|>, which stands for no text
TOKENIZER = byte_tokenizer()
GRAMMARS = Grammars(TOKENIZER, VOCAB_SIZE, END)
CONSTRAINED = SamplingParameters(controls=Controls(constrained=True))
TEXTS = st.lists(st.text("abE é", min_size=1, max_size=12), min_size=1, max_size=4)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Found = tuple[list[int], str | None]


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return found


def constrained(prompt: Sequence[int], response_format: dict[str, Any], **fields: Any) -> Request:
    wanted = structured_output(response_format)
    assert wanted is not None
    return request(list(prompt), sampling=CONSTRAINED, grammar=GRAMMARS.compile(wanted), **fields)


def reference(request: Request, choices: list[str]) -> Found:
    """A token at a time: the target's own if a choice allows it, else the first that one allows."""
    texts, done = [ids(choice) for choice in choices], list[int]()
    while True:
        tokens = [*request.tokens, *done]
        rest = [text[len(done) :] for text in texts if text[: len(done)] == done]
        allowed = {text[0] for text in rest if text} | (set(request.stop_token_ids) if [] in rest else set())
        wanted = target_token(checksum(tokens), len(tokens) - 1)
        done.append(wanted if wanted in allowed else min(allowed))
        complete = not any(text[: len(done)] == done and len(text) > len(done) for text in texts)
        if done[-1] in request.stop_token_ids or complete:
            return done, "stop"
        if len(done) == request.max_new_tokens:
            return done, "length"


def host(bundle: Bundle) -> Engine:
    return HostEngine(
        bundle, OnnxRuntimePrograms(bundle, Options(threads=1)), host_limits(bundle, Options(slots=SLOTS))
    )


def running_ahead(bundle: Bundle) -> Engine:
    return device_engine(bundle, slots=SLOTS, run_ahead=1)


@pytest.fixture(scope="module", params=[host, running_ahead])
def engine(request: pytest.FixtureRequest, bundle: Bundle) -> Engine:
    make: Callable[[Bundle], Engine] = request.param
    return make(bundle)


@pytest.fixture
def loop(engine: Engine) -> Iterator[DecodeLoop]:
    yield DecodeLoop(engine)
    engine.discard()
    for slot in range(SLOTS):
        engine.clear(slot)


@given(data=st.data())
@QUICK
def test_any_block_size_writes_what_a_plain_search_writes(loop: DecodeLoop, data: st.DataObject) -> None:
    texts = data.draw(TEXTS)
    asked = constrained(
        data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=8)),
        {"type": "choice", "choice": texts},
        max_new_tokens=data.draw(st.integers(1, 14)),
        stop_token_ids=frozenset(data.draw(st.sets(st.sampled_from([1, 130, *ids("b")]), min_size=1))),
        block_size=data.draw(st.integers(1, BLOCK_SIZE)),
    )
    assert answer(list(loop.run(0, asked))) == reference(asked, texts)


@given(data=st.data())
@settings(QUICK, max_examples=25)
def test_free_and_constrained_requests_share_a_batch(loop: DecodeLoop, data: st.DataObject) -> None:
    """They come at different times, so that an engine that runs ahead has iterations in flight."""
    texts = ["aaaaaaaaaaaa", "abababababab", "aé"]
    sizes = st.integers(1, BLOCK_SIZE)
    requests = [
        constrained(
            [5, 6, 7], {"type": "choice", "choice": texts}, stop_token_ids=frozenset([1]), block_size=data.draw(sizes)
        ),
        request([9, 8], max_new_tokens=20, block_size=data.draw(sizes)),
        constrained([11], {"type": "choice", "choice": texts}, max_new_tokens=9, block_size=data.draw(sizes)),
    ]
    arrivals = data.draw(st.lists(st.integers(0, 4), min_size=SLOTS, max_size=SLOTS))
    found: list[list[Progress]] = [[] for _ in requests]
    for now in range(200):
        for slot, arrival in enumerate(arrivals):
            if arrival == now:
                loop.admit(slot, requests[slot])
        for event in loop.step():
            assert isinstance(event, Progress)
            found[event.slot].append(event)
        if now > max(arrivals) and all(slot.request is None for slot in loop.slots):
            break
    for asked, events in zip(requests, found, strict=True):
        assert answer(events) == (expected(asked) if asked.grammar is None else reference(asked, texts))


def test_forced_tokens_are_accepted_although_nobody_drafted_them(loop: DecodeLoop) -> None:
    asked = constrained([5, 6, 7], {"type": "choice", "choice": ["a" * 2 * BLOCK_SIZE]}, max_new_tokens=30)
    events = list(loop.run(0, asked))
    assert answer(events) == (ids("a") * 2 * BLOCK_SIZE, "stop")
    assert [event.acceptance_length for event in events][1:] == [BLOCK_SIZE, BLOCK_SIZE]


def test_an_answer_ends_when_nothing_more_may_come(loop: DecodeLoop) -> None:
    """Without a stop token, and without another target pass to write one."""
    for stops in (frozenset[int](), frozenset([1])):
        asked = constrained([5], {"type": "choice", "choice": ["a"]}, stop_token_ids=stops, max_new_tokens=1)
        assert answer(list(loop.run(0, asked))) == (ids("a"), "stop")


def test_without_a_stop_token_a_grammar_that_may_go_on_does(loop: DecodeLoop) -> None:
    asked = constrained([5], {"type": "regex", "regex": "a+"}, max_new_tokens=11, stop_token_ids=frozenset())
    assert answer(list(loop.run(0, asked))) == (ids("a") * 11, "length")


class GivesUp:
    """A grammar that finds no way to go on."""

    complete, fault = False, "it is too complex"

    def start(self, stop_token_ids: object) -> Constraint:
        return self

    def steer(self, drafted: Sequence[int]) -> list[int]:
        return list(drafted)

    def masks(self, drafted: Sequence[int]) -> Masks:
        return np.zeros((len(drafted) + 1, MASK_WORDS), np.int32)

    def commit(self, token: int) -> None:
        raise AssertionError(f"nothing allowed {token}")


def test_an_answer_that_cannot_go_on_fails_alone(loop: DecodeLoop) -> None:
    """Its row forbids every token, which the engine tells as -1; the others don't notice."""
    loop.admit(0, request([5, 6, 7], max_new_tokens=12))
    loop.admit(1, request([9], sampling=CONSTRAINED, grammar=GivesUp()))
    found = [event for _ in range(40) for event in loop.step()]
    failures = [event for event in found if isinstance(event, Failure)]
    assert [event.slot for event in failures] == [1]
    assert "response_format can't be held to any further, it is too complex" in str(failures[0].error)
    free = [event for event in found if isinstance(event, Progress)]
    assert answer(free) == expected(request([5, 6, 7], max_new_tokens=12))
    asked = constrained([9], {"type": "choice", "choice": ["aa"]})
    assert answer(list(loop.run(1, asked))) == (ids("aa"), "stop")


PlantedMasks = Callable[[LlguidanceConstraint, Sequence[int]], Masks]
MASKS = LlguidanceConstraint.masks


def only_the_first_row(self: LlguidanceConstraint, drafted: Sequence[int]) -> Masks:
    masks = MASKS(self, drafted)
    masks[1:] = -1
    return masks


def the_same_for_every_row(self: LlguidanceConstraint, drafted: Sequence[int]) -> Masks:
    masks = MASKS(self, drafted)
    masks[1:] = masks[:1]
    return masks


def a_row_late(self: LlguidanceConstraint, drafted: Sequence[int]) -> Masks:
    masks = MASKS(self, drafted)
    masks[1:] = masks[:-1].copy()
    return masks


@pytest.mark.parametrize("planted", [only_the_first_row, the_same_for_every_row, a_row_late])
def test_masks_that_are_wrong_on_drafted_rows_are_caught(
    loop: DecodeLoop, planted: PlantedMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults of others: no mask on the verified tokens, or that of another position."""
    texts = ["abababababab", "abaaaaaaaaaa"]
    asked = constrained([5, 6, 7], {"type": "choice", "choice": texts}, block_size=BLOCK_SIZE)
    assert answer(list(loop.run(0, asked))) == reference(asked, texts)
    monkeypatch.setattr(LlguidanceConstraint, "masks", planted)
    try:
        assert answer(list(loop.run(0, asked))) != reference(asked, texts)
    except RequestError as e:
        assert "can't be kept to its response_format" in str(e)


def test_a_free_answer_is_another_one(loop: DecodeLoop) -> None:
    """Without its grammar, the pair writes none of the texts that the tests above hold it to."""
    assert not set(ids("ab")) & set(plain_answer([5, 6, 7], 12, (), MAX_LEN)[0])
