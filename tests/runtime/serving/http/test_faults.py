"""Clients that misbehave, and a server that is told or made to end: no hang, no lost request, nothing left behind."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import sleep
from typing import Any

import httpx2
import openai
import pytest

from tests.runtime.serving.http.conftest import Running, say, until

ROOT = Path(__file__).resolve().parents[4]
CHAT = "/v1/chat/completions"
LONG = "long " * 30


def request_bytes(**fields: Any) -> bytes:
    body = json.dumps({"model": "parrot", "messages": say(LONG), "block_size": 1, **fields}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connect(server: Running) -> socket.socket:
    return socket.create_connection((server.http.base_url.host, server.http.base_url.port or 0), timeout=20)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("moment", ["queued", "in prefill", "amidst the answer"])
def test_a_client_that_vanishes_frees_its_slot(slow: Running, stream: bool, moment: str) -> None:
    others = []
    if moment == "queued":  # behind as many as there are slots
        others = [connect(slow) for _ in range(4)]
        for other in others:
            other.sendall(request_bytes())
        until(lambda: slow.service.decoder.queue.running == 4)
    client = connect(slow)
    client.sendall(request_bytes(stream=stream))
    decoder = slow.service.decoder
    if moment == "queued":
        until(lambda: len(decoder.queue) == 1)
    else:
        until(lambda: decoder.queue.running == 1)
    if moment == "amidst the answer":
        if stream:
            assert b"data: " in client.recv(65536) + client.recv(65536)
        else:
            sleep(0.2)
    client.close()
    for other in others:
        other.close()
    until(lambda: slow.idle)
    slow.parrot.pace = lambda: None
    assert slow.say("still here").json()["choices"][0]["message"]["content"] == "still here"


def test_a_reader_that_is_slow_holds_up_nobody(server: Running) -> None:
    """It takes nothing at all, and yet its answer is made, and its slot is free for the next."""
    slow_readers = [connect(server) for _ in range(2)]
    for reader in slow_readers:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        reader.sendall(request_bytes(stream=True, n=2, block_size=6))
    assert server.say("quick").json()["choices"][0]["message"]["content"] == "quick"
    until(lambda: server.idle)
    for reader in slow_readers:
        found = b""
        while b"[DONE]" not in found:
            found += reader.recv(65536)
        assert found.count(b'"finish_reason":"stop"') == 2
        reader.close()


def test_ten_thousand_headers(server: Running) -> None:
    with connect(server) as client:
        try:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + b"x-a: b\r\n" * 10_000 + b"\r\n")
            status = client.recv(100)
        except ConnectionError:
            status = b""
    assert status == b"" or b" 4" in status[:13]
    assert server.say("hi").status_code == 200


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"POST /v1/chat/completions HTTP/9\r\n\r\n", b"\x00" * 1000,
     b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
     b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_what_is_no_http(server: Running, garbage: bytes) -> None:
    with connect(server) as client:
        client.sendall(garbage)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b" 500 " not in answer
    assert server.say("hi").status_code == 200


def test_a_body_that_never_ends_to_arrive(server: Running) -> None:
    clients = [connect(server) for _ in range(8)]
    for client in clients:
        client.sendall(request_bytes()[:-10])
    assert server.say("hi").status_code == 200
    for client in clients:
        client.close()
    until(lambda: server.idle)


def test_many_that_vanish_leave_nothing_behind(server: Running) -> None:
    """Half of the clients leave at some moment of their own; the other half are served as if alone."""
    texts = [f"{i} " * (10 + i) for i in range(24)]

    def ask(i: int) -> str | None:
        if i % 2:
            with connect(server) as client:
                client.sendall(request_bytes(messages=say(texts[i]), stream=i % 4 == 1)[: None if i % 3 else -5])
                sleep(i / 500)
            return None
        return str(server.say(texts[i]).json()["choices"][0]["message"]["content"])

    server.parrot.pace = lambda: sleep(0.001)
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(24))) == [None if i % 2 else text for i, text in enumerate(texts)]


@dataclass(frozen=True, kw_only=True)
class Process:
    process: "subprocess.Popen[bytes]"
    url: str
    port: int
    log: Path

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def process(folder: Path, *, pace: float = 0.0, port: int = 0, drain_timeout: float = 20) -> Iterator[Process]:
    """A server of its own process, killed at the end."""
    command = [sys.executable, "-m", "tests.runtime.serving.http.parrot_server", str(folder), str(port), str(pace),
               str(drain_timeout)]  # fmt: skip
    with NamedTemporaryFile() as log, httpx2.Client(trust_env=False) as http:
        started = subprocess.Popen(command, cwd=ROOT, stderr=log)
        try:
            until(lambda: Path(log.name).read_bytes().count(b"\n") > 0)
            port = json.loads(Path(log.name).read_text().splitlines()[0])["port"]
            url = f"http://127.0.0.1:{port}"
            until(lambda: http.get(f"{url}/ready").status_code == 200)
            yield Process(process=started, url=url, port=port, log=Path(log.name))
        finally:
            started.kill()
            started.wait()


def ask_in_threads(pool: ThreadPoolExecutor, server: Process, texts: list[str]) -> Any:
    """Streams whose first chunks have arrived, and the rest of them, to come."""
    client, begun = server.client(), [threading.Event() for _ in texts]

    def ask(i: int) -> str:
        found = ""
        for chunk in client.chat.completions.create(model="parrot", messages=say(texts[i]), stream=True):
            found += chunk.choices[0].delta.content or ""
            begun[i].set()
        return found

    answers = [pool.submit(ask, i) for i in range(len(texts))]
    for event in begun:
        assert event.wait(20)
    return answers


def test_sigterm_under_load_finishes_what_runs(parrot_folder: Path) -> None:
    texts = [f"{i} " * 20 for i in range(4)]
    with process(parrot_folder, pace=0.03) as server, ThreadPoolExecutor(8) as pool:
        answers = ask_in_threads(pool, server, texts)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises((openai.APIConnectionError, openai.InternalServerError)):
            for _ in range(200):
                server.client().chat.completions.create(model="parrot", messages=say("late"), max_tokens=1)
        assert [answer.result(30) for answer in answers] == texts
        assert server.process.wait(30) == 0
        lines = server.log_lines()
        assert [line["message"] for line in lines if line["logger"] == "dflash.server"][-1] == "ended"
        assert not any("trace" in line for line in lines)


def test_sigterm_does_not_wait_for_ever(parrot_folder: Path) -> None:
    with process(parrot_folder, pace=0.05, drain_timeout=0.3) as server, ThreadPoolExecutor(8) as pool:
        answers = ask_in_threads(pool, server, ["x" * 400] * 2)
        server.process.send_signal(signal.SIGTERM)
        for answer in answers:
            with pytest.raises(openai.APIError, match="shut down before the answer was whole"):
                answer.result(30)
        assert server.process.wait(30) == 0


def test_a_server_that_is_killed_can_be_started_again_at_once(parrot_folder: Path) -> None:
    with process(parrot_folder, pace=0.03) as server, ThreadPoolExecutor(8) as pool:
        answers = ask_in_threads(pool, server, ["x" * 400] * 2)
        server.process.kill()
        for answer in answers:
            with pytest.raises((openai.APIConnectionError, httpx2.TransportError)):
                answer.result(30)
    with process(parrot_folder, port=server.port) as again:
        answer = again.client().chat.completions.create(model="parrot", messages=say("back"))
        assert answer.choices[0].message.content == "back"
