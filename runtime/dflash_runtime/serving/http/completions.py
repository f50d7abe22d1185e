"""POST /v1/completions."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from tokenizers import Tokenizer

from dflash_runtime.completion import Completion, Step
from dflash_runtime.decoder import Decoder
from dflash_runtime.prompt import Prompt
from dflash_runtime.request import Request as EngineRequest
from dflash_runtime.serving.http.acceptance import acceptance_of
from dflash_runtime.serving.http.choices import new_id, requests_of, urgency_of
from dflash_runtime.serving.http.event_stream import respond, steps_of, until_gone
from dflash_runtime.serving.http.logprobs import completion_logprobs, joined
from dflash_runtime.serving.http.requests import CompletionRequest
from dflash_runtime.serving.http.service import service_of
from dflash_runtime.serving.http.usage import usage_of
from dflash_runtime.serving.streams import AsyncAnswerStream

DEFAULT_MAX_TOKENS = 16  # OpenAI's
router = APIRouter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A body, ready to be answered: the choices of the first prompt, then those of the next."""

    body: CompletionRequest
    requests: Sequence[EngineRequest]
    tokenizer: Tokenizer
    head: Mapping[str, Any]  # of the answer, and of every chunk

    def usage(self, streams: Sequence[AsyncAnswerStream]) -> dict[str, Any]:
        """Of all answers, once they are whole."""
        completions = [stream.completion for stream in streams if stream.completion is not None]
        return usage_of(_by_prompt(completions, self.body.n))


def _by_prompt(completions: Sequence[Completion], n: int) -> list[Sequence[Completion]]:
    return [completions[first : first + n] for first in range(0, len(completions), n)]


@router.post("/v1/completions", response_model=None)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Texts that go on where prompts end, whole or as a stream of chunks."""
    service = service_of(request)
    service.check_model(body.model)
    texts = await asyncio.to_thread(prepare, service.decoder.texts, body, service.settings.model)
    streams = service.decoder.stream_all(texts.requests, urgency_of(body, service.settings.request_timeout))
    request.state.streams = streams
    if body.stream:
        return await respond(request, _chunks(texts, streams))
    return JSONResponse(await until_gone(request.receive, _answer(texts, streams)))


def prepare(decoder: Decoder, body: CompletionRequest, model: str) -> Texts:
    """Encode and check. Raises ApiError or RequestError."""
    requests = [
        request
        for prompt in prompts_of(body)
        for request in requests_of(
            decoder,
            body,
            decoder.encoder.encode(prompt),
            max_tokens=body.max_tokens or DEFAULT_MAX_TOKENS,
            response_format=body.response_format,
            logprobs=body.logprobs,
        )
    ]
    head = {"id": new_id("cmpl"), "object": "text_completion", "created": int(time()), "model": model}
    return Texts(body=body, requests=requests, tokenizer=decoder.tokenizer, head=head)


def prompts_of(body: CompletionRequest) -> Sequence[Prompt]:
    """One, or several."""
    if isinstance(body.prompt, str) or isinstance(body.prompt[0], int):
        return [body.prompt]
    return body.prompt


async def _answer(texts: Texts, streams: Sequence[AsyncAnswerStream]) -> dict[str, Any]:
    steps: list[list[Step]] = [[] for _ in streams]
    async for index, step in steps_of(streams):
        steps[index].append(step)
    choices = [_whole_choice(texts, index, answer) for index, answer in enumerate(steps)]
    return {**texts.head, "choices": choices, "usage": texts.usage(streams)}


def _whole_choice(texts: Texts, index: int, steps: Sequence[Step]) -> dict[str, Any]:
    text, logprobs = "", list[dict[str, Any] | None]()
    for step in steps:
        logprobs.append(completion_logprobs(texts.tokenizer, step, len(text)))
        text += step.text
    return _choice(index, text, joined(logprobs), steps[-1].finish_reason)


async def _chunks(texts: Texts, streams: Sequence[AsyncAnswerStream]) -> AsyncGenerator[dict[str, Any], None]:
    options = texts.body.stream_options
    usage: dict[str, Any] = {"usage": None} if options and options.include_usage else {}
    offsets = [0] * len(streams)
    steps = steps_of(streams)
    try:
        async for index, step in steps:
            extra = acceptance_of(step) if options and options.include_acceptance else {}
            logprobs = completion_logprobs(texts.tokenizer, step, offsets[index])
            offsets[index] += len(step.text)
            if step.text or logprobs or extra:
                yield {**texts.head, "choices": [_choice(index, step.text, logprobs)]} | usage | extra
            if step.finish_reason is not None:
                yield {**texts.head, "choices": [_choice(index, "", None, step.finish_reason)]} | usage
    finally:
        await steps.aclose()
    if usage:
        yield {**texts.head, "choices": [], "usage": texts.usage(streams)}


def _choice(index: int, text: str, logprobs: dict[str, Any] | None = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
