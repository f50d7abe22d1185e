"""The contract, as OpenAI's own client sees it."""

import asyncio
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from tests.runtime.serving.http.conftest import Running, say

TEXT = "Grüße, 世界! 👩‍👩‍👧 A line.\nAnother one."


def test_a_chat_answer(server: Running) -> None:
    answer = server.client().chat.completions.create(model="parrot", messages=say(TEXT))
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert answer.object == "chat.completion"
    assert answer.model == "parrot"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(TEXT.encode()) + 1  # bytes, and the stop token
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_is_the_answer_in_pieces(server: Running, include_usage: bool) -> None:
    chunks = list(
        server.client().chat.completions.create(
            model="parrot", messages=say(TEXT), stream=True, stream_options={"include_usage": include_usage}
        )
    )
    if include_usage:
        last = chunks.pop()
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens == len(TEXT.encode()) + 1
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(deltas) == TEXT
    assert not any("\ufffd" in delta for delta in deltas)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert len(chunks) > 5


def test_the_async_client_many_at_once(server: Running) -> None:
    async def ask(client: AsyncOpenAI, i: int) -> str:
        text = f"{i}: {TEXT * (i % 3 + 1)}"
        if i % 2:
            answer = await client.chat.completions.create(model="parrot", messages=say(text))
            return answer.choices[0].message.content or ""
        stream = await client.chat.completions.create(model="parrot", messages=say(text), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        http = httpx2.AsyncClient(trust_env=False)
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http) as client:
            return await asyncio.gather(*(ask(client, i) for i in range(16)))

    assert asyncio.run(ask_all()) == [f"{i}: {TEXT * (i % 3 + 1)}" for i in range(16)]


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(server: Running, stream: bool) -> None:
    client = server.client()
    texts = ["", "", ""]
    if stream:
        for chunk in client.chat.completions.create(model="parrot", messages=say(TEXT), n=3, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    else:
        answer = client.chat.completions.create(model="parrot", messages=say(TEXT), n=3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        texts = [choice.message.content or "" for choice in answer.choices]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3 * (len(TEXT.encode()) + 1)
    assert texts == [TEXT] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["A line", ["zzz", "A line", "Another"], "."])
def test_stop_strings(server: Running, stream: bool, stop: Any) -> None:
    first = "A line" if stop != "." else "."
    create = server.client().chat.completions.create
    if stream:
        chunks = list(create(model="parrot", messages=say(TEXT), stop=stop, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = create(model="parrot", messages=say(TEXT), stop=stop).choices[0]
        text, reason = choice.message.content or "", choice.finish_reason
    assert (text, reason) == (TEXT[: TEXT.index(first)], "stop")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_length_that_cuts_a_character(server: Running, name: str) -> None:
    options: dict[str, Any] = {name: 3}
    choice = server.client().chat.completions.create(model="parrot", messages=say("Grüße"), **options).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Gr\ufffd", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_plain_completions(server: Running, stream: bool) -> None:
    create = server.client().completions.create
    if stream:
        chunks = list(create(model="parrot", prompt="abc", max_tokens=9, stream=True))
        text, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        answer = create(model="parrot", prompt="abc", max_tokens=9)
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert (text, reason) == ("c" * 9, "length")


def test_several_prompts_and_choices(server: Running) -> None:
    answer = server.client().completions.create(model="parrot", prompt=["ab", "xy"], n=2, max_tokens=3)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "bbb"), (1, "bbb"), (2, "yyy"), (3, "yyy")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 12)


@pytest.mark.parametrize("prompt", [[70, 71, 72], [[70, 71, 72]]])
def test_prompts_of_token_ids(server: Running, prompt: Any) -> None:
    answer = server.client().completions.create(model="parrot", prompt=prompt, max_tokens=2)
    assert answer.choices[0].text == "ee"


def test_models(server: Running) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["parrot"]
    assert client.models.retrieve("parrot").owned_by == "dflash"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.models.retrieve("gpt")


def test_a_model_that_is_not_served(server: Running) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        server.client().chat.completions.create(model="gpt-4", messages=say(TEXT))
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


def test_content_in_parts_and_a_developers_message(server: Running) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "<say>he"}, {"type": "text", "text": "llo</say>"}]},
    ]
    answer = server.client().chat.completions.create(model="parrot", messages=messages)
    assert answer.choices[0].message.content == "hello"


def test_how_much_was_drafted(server: Running) -> None:
    with server.http.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": "parrot",
            "messages": say(TEXT),
            "stream": True,
            "stream_options": {"include_acceptance": True},
            "block_size": 6,
        },
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line and "[DONE]" not in line]
    told = [httpx2.Response(200, text=line).json() for line in lines]
    steps = [chunk["acceptance"] for chunk in told if "acceptance" in chunk]
    assert "".join(step["text"] for step in steps) == TEXT
    assert sum(step["tokens"] for step in steps) == len(TEXT.encode()) + 1
    assert all(step["text"].startswith(step["accepted_text"]) for step in steps)
    assert {step["accepted"] for step in steps} >= {0, 2}
