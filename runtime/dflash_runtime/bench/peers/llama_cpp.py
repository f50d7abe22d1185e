"""llama.cpp through the Python package xllamacpp, which comes compiled; --peer llama.cpp=MODEL.gguf."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import xllamacpp

from dflash_engines.bundle import Bundle
from dflash_engines.errors import RequestError
from dflash_runtime.bench.peers import until_stop


def load(bundle: Bundle, path: str | None, threads: int) -> Callable[[Sequence[int], int], list[int]]:
    """The peer `llama.cpp`. Raises RequestError without a GGUF file."""
    if path is None or not Path(path).is_file():
        raise RequestError("the peer llama.cpp needs the target as GGUF: --peer llama.cpp=MODEL.gguf")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_parallel = 1
    parameters.verbosity = 0  # errors only
    parameters.n_ctx = bundle.manifest.limits.max_len
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    server, stops = xllamacpp.Server(parameters), bundle.manifest.stop_token_ids

    def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        found = _complete(server, prompt, max_new_tokens)
        return until_stop([int(token) for token in found["tokens"]], stops)

    return generate


def _complete(server: Any, prompt: Sequence[int], max_new_tokens: int) -> Any:
    """Over its own endpoint: only there are token ids to be had. The server listens on this machine alone."""
    asked = {"prompt": list(prompt), "n_predict": max_new_tokens, "temperature": 0.0, "return_tokens": True,
             "cache_prompt": False}  # fmt: skip
    request = Request(
        f"{server.listening_address}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request) as answer:
        return json.load(answer)
