"""What is refused, with which status and words; every error in OpenAI's form, and no stack trace anywhere."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import httpx2
import openai
import pytest

from dflash_engines.errors import EngineError
from tests.runtime.serving.http.conftest import Running, running, say, until
from tests.runtime.serving.http.parrot import FAULTY, MAX_LEN, write_parrot

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NAN = float("nan")

# field, value, what the message says
BOTH: list[tuple[str, Any, str]] = [
    ("n", 0, "greater than or equal to 1"),
    ("n", 129, "less than or equal to 128"),
    ("n", "2", "valid integer"),
    ("n", 100, "100 answers at once are more than"),
    ("temperature", -1, "greater than or equal to 0"),
    ("temperature", 5, "less than or equal to 2"),
    ("temperature", NAN, "finite number"),
    ("temperature", "hot", "valid number"),
    ("top_p", 0, "greater than 0"),
    ("top_p", 2, "less than or equal to 1"),
    ("top_p", -1, "greater than 0"),
    ("top_p", NAN, "finite number"),
    ("top_k", -1, "greater than or equal to 0"),
    ("min_p", 1.5, "less than or equal to 1"),
    ("stop", "", "at least 1 character"),
    ("stop", [], "at least 1 item"),
    ("stop", ["a", "b", "c", "d", "e"], "at most 4 items"),
    ("stop", ["a", ""], "at least 1 character"),
    ("stop", 5, "valid string"),
    ("seed", -1, "greater than or equal to 0"),
    ("seed", 2**70, "less than or equal to"),
    ("max_tokens", 0, "greater than or equal to 1"),
    ("max_tokens", 1.5, "valid integer"),
    ("logit_bias", {"5": 200}, "less than or equal to 100"),
    ("logit_bias", {"x": 1}, "valid integer"),
    ("logit_bias", {"99999": 1}, "99999"),
    ("presence_penalty", 3, "less than or equal to 2"),
    ("frequency_penalty", -3, "greater than or equal to -2"),
    ("stop_token_ids", [99999], "outside of the vocabulary"),
    ("block_size", 1000, "block_size"),
    ("priority", 2**40, "less than"),
    ("timeout", 0, "greater than 0"),
    ("stream", "yes", "valid boolean"),
    ("stream_options", {"include_weather": True}, "'stream_options.include_weather' is not supported"),
    ("response_format", {"type": "poem"}, "poem"),
    ("response_format", {"type": "json_schema"}, "json_schema"),
    ("audio", {"voice": "alloy"}, "'audio' is not supported by this server"),
    ("best_off", 3, "'best_off' is not supported"),
    ("model", 5, "valid string"),
]
CHATS: list[tuple[str, Any, str]] = [
    ("messages", [], "at least 1 item"),
    ("messages", "hi", "valid list"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"role": "narrator", "content": "x"}], "expected tags"),
    ("messages", [{"role": "assistant"}], "content or tool_calls"),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content"),
    ("messages", [{"role": "user", "content": "x", "mood": "bad"}], "'messages[0].mood' is not supported"),
    ("logprobs", 3, "valid boolean"),
    ("top_logprobs", 21, "less than or equal to 20"),
    ("top_logprobs", 2, "needs logprobs to be true"),
    ("tools", [{"type": "function", "function": {"name": "a b"}}], "pattern"),
    ("reasoning_effort", "high", "'reasoning_effort' is not supported"),
]
TEXTS: list[tuple[str, Any, str]] = [
    ("prompt", "", "the prompt is empty"),
    ("prompt", [], "at least 1 item"),
    ("prompt", [[]], "at least 1 item"),
    ("prompt", [1, "a"], "prompt"),
    ("prompt", [99999], "outside of the vocabulary"),
    ("logprobs", 6, "less than or equal to 5"),
    ("echo", True, "echo"),
    ("suffix", "x", "'suffix' is not supported"),
    ("best_of", 2, "'best_of' is not supported"),
]
CASES = [
    *((CHAT, *case) for case in (*BOTH, *CHATS)),
    *((COMPLETIONS, *case) for case in (*BOTH, *TEXTS)),
]


def body(path: str) -> dict[str, Any]:
    return {"model": "parrot", **({"messages": say("hi")} if path == CHAT else {"prompt": "hi"})}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "field", "value", "message"), CASES)
def test_a_wrong_field_is_refused_by_name(
    server: Running, path: str, field: str, value: Any, message: str, stream: bool
) -> None:
    fields = body(path) | {"stream": stream, field: value}
    response = server.http.post(path, content=json.dumps(fields), headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert response.headers["content-type"] == "application/json"
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] is None or error["param"].startswith(field)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_null_is_a_field_left_out(server: Running, path: str) -> None:
    fields = body(path) | dict.fromkeys(("stop", "seed", "n", "temperature", "audio", "stream", "logit_bias"))
    assert server.http.post(path, json=fields).status_code == 200


BROKEN: dict[str, bytes] = {
    "cut": b'{"model": "parrot", ',
    "no JSON": b"hello",
    "empty": b"",
    "a list": b"[]",
    "a number": b"5",
    "invalid UTF-8": b'{"model": "\xff\xfe"}',
    "half a surrogate pair": b'{"model": "parrot", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "deep": b'{"model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a huge number": b'{"model": "parrot", "seed": ' + b"9" * 10_000 + b"}",
    "twice": b'{"model": 1}{"model": 2}',
    "NaN": b'{"model": "parrot", "messages": NaN}',
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_body_is_refused(server: Running, path: str, name: str) -> None:
    response = server.http.post(path, content=BROKEN[name], headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2", 404), ("GET", CHAT, 405), ("DELETE", "/v1/models", 405), ("POST", "/v1/embeddings", 404)],
)
def test_no_such_endpoint(server: Running, method: str, path: str, status: int) -> None:
    response = server.http.request(method, path)
    assert response.status_code == status
    assert path in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("over", [-1, 0, 1, 2, 10 * MAX_LEN])
def test_prompts_around_the_end_of_the_context(server: Running, over: int, stream: bool) -> None:
    fields = {"model": "parrot", "prompt": [70] * (MAX_LEN + over), "max_tokens": 16, "stream": stream}
    response = server.http.post(COMPLETIONS, json=fields)
    if over > 0:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert str(MAX_LEN) in error["message"]
        assert str(MAX_LEN + over) in error["message"]
    else:
        assert response.status_code == 200
        assert '"length"' in response.text
        assert response.text.count("e") > 0


def test_a_long_chat_says_the_same(server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().chat.completions.create(model="parrot", messages=say("x" * MAX_LEN))
    assert refused.value.code == "context_length_exceeded"


def test_a_backend_that_dies_before_the_first_token_is_a_500(server: Running) -> None:
    def fail() -> None:
        raise EngineError("out of juice")

    server.parrot.pace = fail
    for stream in (False, True):
        response = server.say("hi", stream=stream)
        assert response.status_code == 500
        assert response.json()["error"] == {
            "message": "out of juice",
            "type": "server_error",
            "param": None,
            "code": None,
        }
    server.parrot.pace = lambda: None
    assert server.say("hi").json()["choices"][0]["message"]["content"] == "hi"


def test_a_backend_that_dies_in_the_midst_of_a_stream_ends_it_with_an_error(server: Running) -> None:
    with pytest.raises(openai.APIError, match="the parrot has died"):
        list(server.client().chat.completions.create(model="parrot", messages=say(f"hello{FAULTY}"), stream=True))
    text = server.say(f"hello{FAULTY}", stream=True).text
    assert "[DONE]" not in text
    assert '"the parrot has died"' in text.splitlines()[-2]
    assert server.say(f"hello{FAULTY}").status_code == 500
    assert server.say("hi").json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("stream", [False, True])
def test_choices_that_fail_together_make_no_noise(
    server: Running, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    server.say(f"hello{FAULTY}", n=3, stream=stream)
    until(lambda: server.idle)
    server.say("hi")
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_deadline_is_a_504(slow: Running) -> None:
    response = slow.say("x" * 200, timeout=0.1)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "timeout"


def test_a_full_server_says_when_to_come_again(parrot_folder: Path) -> None:
    with running(parrot_folder, slots=1, queue_size=1) as server:
        server.parrot.pace = lambda: sleep(0.02)
        client = server.client()
        streams = [client.chat.completions.create(model="parrot", messages=say("x" * 50), stream=True)]
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="parrot", messages=say("x"), n=2)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert refused.value.code == "queue_full"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streams[0]) == "x" * 50


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = write_parrot(tmp_path_factory.mktemp("locked"), "{{ messages[0].content }}<|turn|>assistant: ")
    with running(folder, api_keys=("sesame", "öffne dich"), largest_body=2000) as server:
        yield server


def test_a_key_opens_the_door(locked: Running) -> None:
    for key in ("sesame", "öffne dich"):
        headers = {b"authorization": f"Bearer {key}".encode()}
        response = locked.http.post(CHAT, json={"model": "parrot", "messages": say("hi")}, headers=headers)
        assert response.status_code == 200
    client = locked.client(api_key="sesame")
    assert client.chat.completions.create(model="parrot", messages=say("hi")).choices[0].message.content == "hi"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer Sesame", "Basic sesame", "sesame", "Bearer sesame x"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/models", "/v1/other"])
def test_without_a_key_nothing_is_told(locked: Running, path: str, header: str) -> None:
    response = locked.http.post(path, content=b"{broken", headers={"authorization": header})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_whoever_watches_needs_no_key(locked: Running) -> None:
    for path in ("/health", "/ready", "/metrics"):
        assert locked.http.get(path).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [3000, 100_000_000])
def test_a_body_that_is_too_large(locked: Running, size: int, chunked: bool) -> None:
    """The server doesn't read it: it may be gone before all is sent."""

    def pieces() -> Iterator[bytes]:
        for _ in range(0, size, 1000):
            yield b" " * 1000

    content: Any = pieces() if chunked else b" " * size
    try:
        response = locked.http.post(CHAT, content=content, headers={"authorization": "Bearer sesame"})
    except httpx2.TransportError:
        pass
    else:
        assert response.status_code == 413
        assert "larger than 2000 bytes" in response.json()["error"]["message"]
    until(lambda: locked.http.get("/health").status_code == 200)


def test_pages_of_other_hosts_may_not_ask(server: Running) -> None:
    response = server.http.options(
        CHAT, headers={"origin": "https://evil.example", "access-control-request-method": "POST"}
    )
    assert "access-control-allow-origin" not in response.headers


def test_pages_of_allowed_hosts_may_ask(parrot_folder: Path) -> None:
    with running(parrot_folder, allowed_origins=("https://good.example",), api_keys=("key",)) as server:
        for origin, allowed in (("https://good.example", True), ("https://evil.example", False)):
            asked = {"origin": origin, "access-control-request-method": "POST"}
            response = server.http.options(CHAT, headers=asked)
            assert ("access-control-allow-origin" in response.headers) == allowed
