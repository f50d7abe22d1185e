"""The trained tiny pair behind the server: seeds, sampling, log-probabilities, schemas, and two strangers' clients."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import exp
from typing import Any

import httpx2
import jsonschema
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from dflash_runtime.decoder import Decoder
from tests.models.tiny_pair import held_back_questions
from tests.runtime.serving.http.test_load import check

QUESTIONS = held_back_questions()


@pytest.fixture(scope="module")
def client(tiny_url: str) -> Iterator[openai.OpenAI]:
    with httpx2.Client(trust_env=False) as http:
        yield openai.OpenAI(base_url=f"{tiny_url}/v1", api_key="none", max_retries=0, timeout=120, http_client=http)


def ask(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


def test_answers_are_the_librarys(client: openai.OpenAI, tiny_decoder: Decoder) -> None:
    for question in QUESTIONS[:3]:
        answer = client.chat.completions.create(model="tiny", messages=ask(question), temperature=0, max_tokens=80)
        expected = tiny_decoder.complete(ask(question), max_new_tokens=80)
        assert answer.choices[0].message.content == expected.text
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(expected.token_ids)


def test_many_mixed_requests_at_once(client: openai.OpenAI, tiny_decoder: Decoder) -> None:
    check(client, tiny_decoder, 20)


def test_a_seed_gives_the_same_answer_alone_and_in_company(client: openai.OpenAI, tiny_decoder: Decoder) -> None:
    def draw(seed: int | None) -> str:
        options: dict[str, Any] = {} if seed is None else {"seed": seed}
        answer = client.chat.completions.create(
            model="tiny", messages=ask(QUESTIONS[0]), temperature=1.5, max_tokens=40, **options
        )
        return answer.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as pool:
        seeded = list(pool.map(draw, [0, 1, 2, 0, 1, 2]))
        free = list(pool.map(draw, [None] * 4))
    expected = [
        tiny_decoder.complete(ask(QUESTIONS[0]), temperature=1.5, max_new_tokens=40, seed=seed).text
        for seed in range(3)
    ]
    assert seeded == expected * 2
    assert len({*expected, *free}) == 7


def test_choices_differ_and_begin_with_the_seed(client: openai.OpenAI) -> None:
    def create(seed: int, n: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model="tiny", messages=ask(QUESTIONS[1]), temperature=1.5, max_tokens=30, seed=seed, n=n
        )
        return [choice.message.content for choice in answer.choices]

    assert create(5, 3) == [*create(5, 1), *create(6, 1), *create(7, 1)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("block_size", [1, 8])
def test_logprobs(client: openai.OpenAI, stream: bool, temperature: int, block_size: int) -> None:
    """The target's own, for each token, whether it was drafted or not."""

    def content(stream: bool, block_size: int) -> list[Any]:
        options: Any = {"model": "tiny", "messages": ask(QUESTIONS[2]), "temperature": temperature, "seed": 3,
                        "max_tokens": 12, "logprobs": True, "top_logprobs": 5,
                        "extra_body": {"block_size": block_size}}  # fmt: skip
        if not stream:
            answer = client.chat.completions.create(**options)
            assert answer.choices[0].logprobs is not None
            assert answer.choices[0].logprobs.content is not None
            return list(answer.choices[0].logprobs.content)
        chunks = client.chat.completions.create(**options, stream=True)
        told = [chunk.choices[0].logprobs for chunk in chunks]
        return [token for logprobs in told if logprobs is not None for token in logprobs.content or []]

    found = content(stream, block_size)
    assert len(found) == 12
    for token in found:
        assert [top.logprob for top in token.top_logprobs] == sorted(t.logprob for t in token.top_logprobs)[::-1]
        assert len(token.top_logprobs) == 5
        assert 0 < sum(exp(top.logprob) for top in token.top_logprobs) <= 1 + 1e-5
        assert bytes(token.bytes).decode(errors="replace") == token.token
        if temperature == 0:
            assert (token.token, token.logprob) == (token.top_logprobs[0].token, token.top_logprobs[0].logprob)
    assert found == content(False, 1)


def test_logprobs_of_plain_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Once", temperature=0, max_tokens=6, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == answer.choices[0].text
    assert logprobs.text_offset == [len("".join((logprobs.tokens or [])[:i])) for i in range(6)]
    assert [max(top.values()) for top in logprobs.top_logprobs or []] == logprobs.token_logprobs


class Person(BaseModel):
    name: str
    age: int
    member: bool


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_a_schema(client: openai.OpenAI, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    options: Any = {"model": "tiny", "messages": ask(QUESTIONS[2]), "response_format": response_format, "seed": 1}
    if stream:
        chunks = list(client.chat.completions.create(**options, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        text = client.chat.completions.create(**options).choices[0].message.content or ""
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "rules",
    [
        {"logit_bias": {"300": 100.0}},
        {"logit_bias": {"300": 5.0}, "frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"repetition_penalty": 1.5},
    ],
)
def test_bias_and_penalties_are_the_librarys(
    client: openai.OpenAI, tiny_decoder: Decoder, rules: dict[str, Any]
) -> None:
    answer = client.completions.create(model="tiny", prompt="a b", temperature=0, max_tokens=40, extra_body=rules)
    assert answer.choices[0].text == tiny_decoder.complete("a b", max_new_tokens=40, **rules).text
    assert answer.choices[0].text != tiny_decoder.complete("a b", max_new_tokens=40).text


def test_min_tokens(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "messages": ask(QUESTIONS[0]), "temperature": 0, "max_tokens": 200}
    free = client.chat.completions.create(**options)
    assert free.choices[0].finish_reason == "stop"
    assert free.usage is not None
    more = free.usage.completion_tokens + 5
    longer = client.chat.completions.create(**options, extra_body={"min_tokens": more})
    assert longer.usage is not None
    assert longer.usage.completion_tokens > more


def chat_model(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="tiny", base_url=f"{url}/v1", api_key=SecretStr("none"), max_retries=0, timeout=120, **options
    )


def test_langchains_client(tiny_url: str, tiny_decoder: Decoder) -> None:
    expected = tiny_decoder.complete(ask(QUESTIONS[0]), max_new_tokens=60).text
    model = chat_model(tiny_url, temperature=0, max_completion_tokens=60, stream_usage=True)
    answer = model.invoke(QUESTIONS[0])
    assert answer.content == expected
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    chunks = list(model.stream(QUESTIONS[0]))
    assert "".join(str(chunk.content) for chunk in chunks) == expected
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert sum(usage["output_tokens"] for usage in usages) > 0
    batch = model.batch([[("user", question)] for question in QUESTIONS[:4]])
    assert [len(message.content) > 0 for message in batch] == [True] * 4


def test_langchains_structured_output_and_tools(tiny_url: str) -> None:
    model = chat_model(tiny_url, seed=1)
    person = model.with_structured_output(Person, method="json_schema", strict=True).invoke(QUESTIONS[2])
    assert isinstance(person, Person)
    with pytest.raises(openai.BadRequestError, match="takes no tools"):
        model.bind_tools([Person]).invoke("hi")
