import re
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engines.backend import Buffers, Options, Run
from dflash_engines.bundle import Bundle
from dflash_engines.errors import BundleError, EngineError, RequestError
from dflash_engines.host_engine import HostEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_runtime import Completion, Decoder, Step, finish
from dflash_runtime.comparison import compare
from dflash_runtime.request import Request, check_request
from tests.engines.scripted_bundle import (
    BLOCK_SIZE,
    MAX_LEN,
    byte_tokenizer,
    manifest,
    write_bundle,
    write_manifest,
)
from tests.engines.scripted_pair import POISON_ID, STOP_TOKEN_IDS, acceptance_lengths, plain_answer

PROMPT = [5, 6, 7]


def answer(prompt: list[int], new: int = 20, stops: tuple[int, ...] = ()) -> tuple[list[int], str]:
    return plain_answer(prompt, new, stops, MAX_LEN)


def test_a_bundle_loads_by_its_folder(scripted_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scripted_folder.parent)
    decoder = Decoder.load(scripted_folder.name, max_len=30)
    completion = decoder.complete(PROMPT, max_new_tokens=100, stop_token_ids=())
    assert len(completion.token_ids) == 30 + 1 - len(PROMPT)


def test_an_unknown_backend_is_an_engine_error(scripted_folder: Path) -> None:
    with pytest.raises(EngineError, match=r"no backend 'magic'; installed are .*'onnxruntime'"):
        Decoder.load(scripted_folder, backend="magic")


@pytest.mark.parametrize("block_size", [1, 2, BLOCK_SIZE])
def test_a_completion_is_the_plain_answer_with_its_measurements(decoder: Decoder, block_size: int) -> None:
    found = decoder.complete(PROMPT, max_new_tokens=20, block_size=block_size, stop_token_ids=())
    tokens, reason = answer(PROMPT)
    assert (list(found.token_ids), found.finish_reason) == (tokens, reason)
    assert list(found.acceptance_lengths) == acceptance_lengths(PROMPT, 20, block_size)
    assert found.acceptance_length == sum(found.acceptance_lengths) / len(found.acceptance_lengths)
    assert found.text == byte_tokenizer().decode(tokens)
    assert (found.prompt_tokens, found.reused_tokens) == (len(PROMPT), 0)
    assert min(found.seconds.prefill, found.seconds.target, found.seconds.accept, found.seconds.host) > 0
    assert (found.seconds.draft > 0) == (block_size > 1)
    assert found.tokens_per_second > 0


def test_the_receivers_time_is_not_counted(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by hand: an hour in the receiver, nothing in the decoder."""
    clock = [1000.0]
    monkeypatch.setattr("dflash_runtime.decoder.perf_counter", lambda: clock[0])
    monkeypatch.setattr("dflash_engines.host_engine.perf_counter", lambda: clock[0])

    def dawdle(step: Step) -> None:
        clock[0] += 3600.0

    found = finish(decoder.generate(PROMPT, max_new_tokens=5, stop_token_ids=()), dawdle)
    assert found.seconds.host == found.seconds.decode == 0.0


def test_the_last_block_counts_in_full_although_it_was_cut(decoder: Decoder) -> None:
    """Acceptance length says how good the drafter is, not where the budget ended."""
    prompt = [3, 1, 4, 1, 5]
    first = acceptance_lengths(prompt, 20, BLOCK_SIZE)[0]
    assert first > 2
    cut = decoder.complete(prompt, max_new_tokens=2, stop_token_ids=())
    assert cut.acceptance_lengths == (first,)


def test_steps_make_up_the_completion(decoder: Decoder) -> None:
    steps: list[Step] = []
    found = finish(decoder.generate(PROMPT, max_new_tokens=20, stop_token_ids=()), steps.append)
    assert isinstance(found, Completion)
    assert [token for step in steps for token in step.token_ids] == list(found.token_ids)
    assert "".join(step.text for step in steps) == found.text
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert steps[0].acceptance_length is None
    for step in steps:
        assert step.text.startswith(step.accepted_text)
        assert 0 <= step.accepted <= len(step.token_ids)
    for step in steps[1:-1]:
        assert step.acceptance_length == step.accepted + 1 == len(step.token_ids)


def test_the_models_own_stop_tokens_end_the_answer_and_give_no_text(decoder: Decoder) -> None:
    tokens, reason = answer(PROMPT, 40, STOP_TOKEN_IDS)
    found = decoder.complete(PROMPT, max_new_tokens=40)
    assert reason == found.finish_reason == "stop"
    assert list(found.token_ids) == tokens
    assert found.text == byte_tokenizer().decode(tokens[:-1])  # the stop is an ordinary token here


def test_given_stop_tokens_take_the_place_of_the_models_own(decoder: Decoder) -> None:
    plain = answer(PROMPT, 40)[0]
    assert list(decoder.complete(PROMPT, max_new_tokens=40, stop_token_ids=()).token_ids) == plain
    stop = plain[6]
    found = decoder.complete(PROMPT, max_new_tokens=40, stop_token_ids=[stop])
    assert list(found.token_ids) == plain[: plain.index(stop) + 1]


def test_text_and_messages_are_encoded_with_the_bundles_own_tokenizer(decoder: Decoder) -> None:
    tokenizer = byte_tokenizer()
    as_text = decoder.complete("hello", max_new_tokens=8, stop_token_ids=())
    assert list(as_text.token_ids) == answer(tokenizer.encode("hello").ids, 8)[0]
    as_chat = decoder.complete([{"role": "user", "content": "hey"}], max_new_tokens=8, stop_token_ids=())
    prompt = tokenizer.encode("<|turn|>user: hey<|end|><|turn|>assistant: ").ids
    assert as_chat.prompt_tokens == len(prompt)
    assert list(as_chat.token_ids) == answer(prompt, 8)[0]


def test_the_second_turn_computes_only_what_is_new(decoder: Decoder) -> None:
    first = decoder.complete(PROMPT, max_new_tokens=10, stop_token_ids=())
    prompt = [*PROMPT, *first.token_ids, 50, 51]
    second = decoder.complete(prompt, max_new_tokens=10, stop_token_ids=())
    assert second.reused_tokens >= len(PROMPT) + 9  # the last token may not have gone through the target
    assert list(second.token_ids) == answer(prompt, 10)[0]
    decoder.forget()
    assert decoder.complete(prompt, max_new_tokens=10, stop_token_ids=()).reused_tokens == 0


def test_an_abandoned_generation_leaves_the_decoder_usable(decoder: Decoder) -> None:
    steps = decoder.generate(PROMPT, max_new_tokens=30, stop_token_ids=())
    next(steps)
    next(steps)
    del steps
    assert list(decoder.complete(PROMPT, max_new_tokens=20, stop_token_ids=()).token_ids) == answer(PROMPT)[0]


def test_a_generation_that_was_never_started_holds_nothing(decoder: Decoder) -> None:
    never_started = decoder.generate(PROMPT)
    assert decoder.complete(PROMPT, max_new_tokens=3, stop_token_ids=()).finish_reason == "length"
    never_started.close()


def test_two_generations_at_once_are_refused_at_the_call(decoder: Decoder) -> None:
    steps = decoder.generate(PROMPT, stop_token_ids=())
    next(steps)
    with pytest.raises(RequestError, match="another generation is running on this decoder"):
        decoder.generate([8])
    steps.close()
    assert decoder.complete([8], max_new_tokens=1, stop_token_ids=()).token_ids == tuple(answer([8], 1)[0])


def test_an_overflow_fails_the_request_and_not_the_next(decoder: Decoder) -> None:
    with pytest.raises(EngineError, match="NaN or infinity"):
        decoder.complete([*PROMPT, POISON_ID])
    assert list(decoder.complete(PROMPT, max_new_tokens=20, stop_token_ids=()).token_ids) == answer(PROMPT)[0]


class FailsOnce:
    """Programs whose n-th run of one program fails."""

    def __init__(self, bundle: Bundle, program: str, run: int) -> None:
        self._programs = OnnxRuntimePrograms(bundle, Options())
        self._program, self._left = program, run

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        run = self._programs.bind(program, inputs, outputs)

        def fails_once() -> None:
            if program == self._program:
                self._left -= 1
                if self._left == 0:
                    raise EngineError("the device is on fire")
            run()

        return fails_once


@pytest.mark.parametrize("program", ["draft", "target", "accept"])
@pytest.mark.parametrize("run", [1, 2, 4])
def test_a_call_that_fails_ends_its_request_and_not_the_next(bundle: Bundle, program: str, run: int) -> None:
    decoder = Decoder(HostEngine(bundle, FailsOnce(bundle, program, run), host_limits(bundle, Options())))
    with pytest.raises(EngineError, match="on fire"):
        decoder.complete(PROMPT, max_new_tokens=40, stop_token_ids=())
    for block_size in (BLOCK_SIZE, 1):
        found = decoder.complete(PROMPT, max_new_tokens=20, block_size=block_size, stop_token_ids=())
        assert list(found.token_ids) == answer(PROMPT)[0]


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        ("", {}, "the prompt is empty"),
        ([], {}, "the prompt is empty"),
        ([1] * (MAX_LEN + 1), {}, f"has {MAX_LEN + 1} tokens, this engine holds {MAX_LEN}"),
        ([1, 260], {}, "token id 260"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        *[
            ([1], {name: value}, f"{name} must be a whole number, not {re.escape(repr(value))}")
            for name in ("max_new_tokens", "block_size")
            for value in (2.5, 2.0, "3", nan, inf, True, np.True_, np.float64(2))
        ],
        ([1], {"max_new_tokens": None}, "max_new_tokens must be a whole number, not None"),
        *[
            ([1], {"stop_token_ids": value}, f"stop_token_ids must be a collection of token ids, not {value!r}")
            for value in ("ab", b"ab", 5)
        ],
        ([1], {"stop_token_ids": [3, None]}, r"stop_token_ids\[1\] must be a whole number, not None"),
        ([1], {"stop_token_ids": [1.5]}, r"stop_token_ids\[0\] must be a whole number, not 1.5"),
        ([{"role": "user", "content": "hi"}, {"role": "user"}], {}, "message 1 has no text as its 'content'"),
        ([{"role": 5, "content": "hi"}], {}, "message 0 has no text as its 'role'"),
        ([{"role": "user", "content": None}], {}, "message 0 has no text as its 'content'"),
        ([1], {"block_size": BLOCK_SIZE + 1}, f"block_size must be within 1..{BLOCK_SIZE}"),
        ([1], {"stop_token_ids": [-1]}, "stop_token_ids holds token id -1"),
        (7, {}, "a prompt is text"),
    ],
)
def test_a_bad_request_is_refused_at_the_call(
    decoder: Decoder, prompt: object, arguments: dict[str, Any], message: str
) -> None:
    for method in (decoder.generate, decoder.complete):
        with pytest.raises(RequestError, match=message):
            method(prompt, **arguments)  # type: ignore[arg-type]


def test_a_tokenizer_file_that_truncates_does_not_cut_prompts(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    write_manifest(folder, manifest())
    found = Decoder.load(Bundle.open(folder).path).complete("hello world", max_new_tokens=1)
    assert found.prompt_tokens == len("hello world")


def test_a_bundle_without_a_sampling_program_refuses_to_sample(decoder: Decoder) -> None:
    with pytest.raises(RequestError, match="no program 'accept_sampling'"):
        decoder.complete(PROMPT, temperature=0.7)
    with pytest.raises(RequestError, match="no program 'accept_sampling_filters'"):
        decoder.complete(PROMPT, temperature=0.7, top_p=0.9)


def test_acceptance_is_told_by_position(decoder: Decoder) -> None:
    found = decoder.complete(PROMPT, max_new_tokens=20, block_size=4, stop_token_ids=())
    lengths = acceptance_lengths(PROMPT, 20, 4)
    assert found.block_sizes == (4,) * len(lengths)
    assert found.acceptance_histogram == {n: lengths.count(n) for n in sorted(set(lengths))}
    assert found.acceptance_by_position == tuple(sum(n > k for n in lengths) / len(lengths) for k in (1, 2, 3))
    assert found.acceptance_rate == sum(n - 1 for n in lengths) / (3 * len(lengths))
    assert 0 < found.acceptance_rate < 1


def test_plain_decoding_drafts_nothing(decoder: Decoder) -> None:
    found = decoder.complete(PROMPT, max_new_tokens=5, block_size=1, stop_token_ids=())
    assert (found.acceptance_rate, found.acceptance_by_position) == (0.0, ())
    assert found.acceptance_histogram == {1: 4}
    assert decoder.complete(PROMPT, max_new_tokens=1, stop_token_ids=()).acceptance_histogram == {}


def test_forgetting_is_refused_while_a_generation_runs(decoder: Decoder) -> None:
    """It would go on over rows that nobody knows of."""
    other = decoder.request([8], 2, None, None)
    steps = decoder.generate(PROMPT, max_new_tokens=20, stop_token_ids=())
    tokens = list(next(steps).token_ids)
    with pytest.raises(RequestError, match="another generation is running on this decoder"):
        decoder.forget()
    with pytest.raises(RequestError, match="another generation is running on this decoder"):
        compare(decoder, other, lambda step: None)
    tokens += [token for step in steps for token in step.token_ids]
    assert tokens == answer(PROMPT)[0]


def test_integers_of_numpy_are_whole_numbers(decoder: Decoder) -> None:
    plain = answer(PROMPT, 40)[0]
    found = decoder.complete(
        list(np.array(PROMPT)),
        max_new_tokens=np.int64(20),  # type: ignore[arg-type]
        block_size=np.int32(3),  # type: ignore[arg-type]
        stop_token_ids=np.array([plain[6]]),
    )
    assert list(found.token_ids) == plain[: plain.index(plain[6]) + 1]
    assert {type(token) for token in found.token_ids} == {int}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"threads": "2"}, EngineError, "threads must be a whole number of at least 1, not '2'"),
        ({"threads": 1.5}, EngineError, "threads must be a whole number of at least 1, not 1.5"),
        ({"max_len": "5"}, EngineError, "max_len '5' is not a whole number within"),
        ({"max_len": 2.5}, EngineError, "max_len 2.5 is not a whole number within"),
        ({"path": None}, BundleError, "None can't be a folder"),
        ({"path": "a\0b"}, BundleError, "can't be a folder .*null"),
        ({"path": "~nobody-of-this-name/x"}, BundleError, "can't be a folder .*home"),
        ({"path": "x" * 5000}, BundleError, "can't be a folder .*too long"),
    ],
)
def test_a_bad_option_of_load_is_refused(
    scripted_folder: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Decoder.load(**{"path": scripted_folder} | arguments)


@pytest.mark.parametrize("field", ["tokens", "max_new_tokens", "stop_token_ids", "block_size"])
def test_a_request_made_by_hand_is_checked_too(bundle: Bundle, field: str) -> None:
    fields = {"tokens": (1,), "max_new_tokens": 1, "stop_token_ids": frozenset[int](), "block_size": 1}
    request = Request(**fields | {field: 1.5 if field in ("max_new_tokens", "block_size") else (1.5,)})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"must be a whole number, not 1.5"):
        check_request(request, limits=bundle.manifest.limits, manifest=bundle.manifest)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", "is not a tokenizer"),
        ("tokenizer.json", b"{}", "is not a tokenizer"),
        ("tokenizer_config.json", b"{", "Invalid JSON"),
        ("tokenizer_config.json", b"[" * 100_000, "Invalid JSON"),
        ("tokenizer_config.json", b"[1]", "should be an object"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', "chat_template"),
        ("tokenizer_config.json", b"\xff", "is not UTF-8 text"),
        ("chat_template.jinja", b"\xff", "is not UTF-8 text"),
    ],
)
def test_a_text_file_of_a_bundle_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    folder = write_bundle(tmp_path / "bundle")
    (folder / name).write_bytes(content)
    write_manifest(folder, manifest())
    with pytest.raises(BundleError, match=f"{name}.*{message}"):
        Decoder.load(folder)


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stop_strings_cut_as_a_search_of_plain_text_does(decoder: Decoder, data: st.DataObject) -> None:
    """Any piece of the answer as a stop: inside a block, over its borders, in half a character's place."""
    prompt = data.draw(st.lists(st.integers(4, 255), min_size=1, max_size=6))
    new = data.draw(st.integers(1, 30))
    tokens, reason = answer(prompt, new, STOP_TOKEN_IDS)
    shown = tokens[:-1] if reason == "stop" else tokens
    begin, length = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 4))
    whole = byte_tokenizer().decode(shown)
    stop = whole[begin : begin + length] or "nowhere"
    found = decoder.complete(prompt, max_new_tokens=new, stop=stop, block_size=data.draw(st.integers(1, BLOCK_SIZE)))
    if stop in whole:
        needed = next(n for n in range(1, len(shown) + 1) if stop in byte_tokenizer().decode(shown[:n]))
        tokens, reason, whole = shown[:needed], "stop", whole[: whole.find(stop)]
    assert found.text == whole
    assert found.finish_reason == reason
    if "\ufffd" not in stop:  # a broken character shows with the token after it
        assert list(found.token_ids) == tokens


@pytest.mark.parametrize("block_size", [1, 3, BLOCK_SIZE])
def test_nothing_of_a_stop_string_is_shown(decoder: Decoder, block_size: int) -> None:
    whole = byte_tokenizer().decode(answer(PROMPT)[0])
    for begin in range(len(whole) - 3):
        steps: list[Step] = []
        stop = whole[begin : begin + 3]
        found = finish(
            decoder.generate(PROMPT, max_new_tokens=20, stop=["never", stop], stop_token_ids=(), block_size=block_size),
            steps.append,
        )
        assert "".join(step.text for step in steps) == found.text == whole[: whole.find(stop)]
        assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["stop"]
        assert all(step.text.startswith(step.accepted_text) for step in steps)
        assert steps[-1].accepted <= len(steps[-1].token_ids)


def test_a_stop_string_wins_over_the_budget_and_the_budget_over_a_later_one(decoder: Decoder) -> None:
    needed = next(n for n in range(20) if "E" in byte_tokenizer().decode(answer(PROMPT)[0][:n]))
    at_budget = decoder.complete(PROMPT, max_new_tokens=needed, stop="E", stop_token_ids=())
    assert (at_budget.finish_reason, len(at_budget.token_ids)) == ("stop", needed)
    after = decoder.complete(PROMPT, max_new_tokens=needed - 1, stop="E", stop_token_ids=())
    assert (after.finish_reason, len(after.token_ids)) == ("length", needed - 1)


def test_a_held_back_beginning_comes_with_the_end(decoder: Decoder) -> None:
    whole = byte_tokenizer().decode(answer(PROMPT, 5)[0])
    found = decoder.complete(PROMPT, max_new_tokens=5, stop=whole[-2:] + "!", stop_token_ids=())
    assert (found.text, found.finish_reason) == (whole, "length")


def test_a_special_token_as_a_stop_string_is_a_stop_token(decoder: Decoder) -> None:
    """Its text is never shown, so a search would not find it."""
    prompt = next(p for p in ([n] for n in range(4, 250)) if 2 in answer(p, 20)[0][1:])
    plain = answer(prompt, 20)[0]
    found = decoder.complete(prompt, max_new_tokens=20, stop="<|mask|>", stop_token_ids=())
    assert (list(found.token_ids), found.finish_reason) == (plain[: plain.index(2) + 1], "stop")


def test_the_decoder_is_free_when_the_last_step_is_seen(decoder: Decoder) -> None:
    stop = byte_tokenizer().decode(answer(PROMPT)[0])[4]
    for ends in ({"stop": stop}, {"stop_token_ids": STOP_TOKEN_IDS}):
        between: list[Completion] = []

        def other(step: Step, between: list[Completion] = between) -> None:
            if step.finish_reason is not None:
                between.append(decoder.complete([8], max_new_tokens=30, stop_token_ids=()))

        found = finish(decoder.generate(PROMPT, max_new_tokens=40, **{"stop_token_ids": ()} | ends), other)
        assert [list(completion.token_ids) for completion in between] == [answer([8], 30)[0]]
        assert found.seconds.host > 0


def test_rows_behind_a_stop_string_serve_the_next_turn(decoder: Decoder) -> None:
    tokens = answer(PROMPT)[0]
    stop = byte_tokenizer().decode(tokens)[6]
    first = decoder.complete(PROMPT, max_new_tokens=20, stop=stop, stop_token_ids=())
    prompt = [*PROMPT, *first.token_ids, 50]
    second = decoder.complete(prompt, max_new_tokens=10, stop_token_ids=())
    assert second.reused_tokens >= len(PROMPT) + len(first.token_ids) - 1
    assert list(second.token_ids) == answer(prompt, 10)[0]
