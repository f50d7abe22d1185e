"""Many mixed requests: each answer is the one that the library gives alone, and nothing grows."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from dflash_runtime.decoder import Decoder
from tests.models.tiny_pair import held_back_questions
from tests.runtime.serving.http.conftest import say
from tests.runtime.serving.http.test_faults import Process, process

QUESTIONS = held_back_questions()


@pytest.fixture
def client(tiny_url: str) -> Iterator[openai.OpenAI]:
    with httpx2.Client(trust_env=False, limits=httpx2.Limits(max_connections=32)) as http:
        yield openai.OpenAI(base_url=f"{tiny_url}/v1", api_key="none", max_retries=0, timeout=600, http_client=http)


def mixed_requests(count: int) -> list[dict[str, Any]]:
    """Fields of the library's `complete`, beside the prompt; most of them at random."""
    dice = random.Random(11)
    return [
        {
            "max_new_tokens": dice.choice([1, 8, 40, 100]),
            "temperature": dice.choice([0.0, 0.0, 0.7, 1.3]),
            "top_p": dice.choice([1.0, 0.8]),
            "seed": i,
            "stop": dice.choice([None, "e", [".", "\n"]]),
            "presence_penalty": dice.choice([0.0, 0.0, 1.0]),
        }
        for i in range(count)
    ]


def check(client: openai.OpenAI, decoder: Decoder, count: int) -> None:
    requests = mixed_requests(count)
    prompts = [[{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}] for i in range(count)]

    def ask(i: int) -> str:
        fields = {name: value for name, value in requests[i].items() if value is not None}
        options: Any = fields | {"model": "tiny", "messages": prompts[i], "max_tokens": fields.pop("max_new_tokens")}
        options.pop("max_new_tokens", None)
        if i % 2:
            return client.chat.completions.create(**options).choices[0].message.content or ""
        chunks = client.chat.completions.create(**options, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(count)))
    alone = [decoder.complete(prompt, **fields).text for prompt, fields in zip(prompts, requests, strict=True)]
    assert answers == alone


@pytest.mark.slow
def test_two_hundred_requests_at_once(client: openai.OpenAI, tiny_decoder: Decoder) -> None:
    check(client, tiny_decoder, 200)


def ask_many(server: Process, count: int) -> None:
    with httpx2.Client(trust_env=False, timeout=60) as http, ThreadPoolExecutor(8) as pool:

        def ask(i: int) -> int:
            body = {"model": "parrot", "messages": say(f"{i} " * (i % 7)), "stream": bool(i % 2), "max_tokens": 20}
            return http.post(f"{server.url}/v1/chat/completions", json=body).status_code

        assert set(pool.map(ask, range(count))) == {200}


def resident_bytes(server: Process) -> float:
    lines = httpx2.get(f"{server.url}/metrics", trust_env=False).text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("process_resident_memory_bytes")))


@pytest.mark.slow
def test_two_thousand_requests_leave_the_memory_flat(parrot_folder: Path) -> None:
    with process(parrot_folder) as server:
        ask_many(server, 1500)  # threads and the allocator's pools come with the first requests
        before = resident_bytes(server)
        ask_many(server, 2000)
        assert resident_bytes(server) == pytest.approx(before, rel=0.02)
