"""POST /v1/chat/completions."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from dflash_runtime.completion import Step
from dflash_runtime.serving.http.acceptance import acceptance_of
from dflash_runtime.serving.http.chat_prompt import Chat, prepare
from dflash_runtime.serving.http.chat_text import ChatText, Delta, message_of
from dflash_runtime.serving.http.choices import urgency_of
from dflash_runtime.serving.http.event_stream import respond, steps_of, until_gone
from dflash_runtime.serving.http.logprobs import chat_logprobs, joined
from dflash_runtime.serving.http.requests import ChatRequest
from dflash_runtime.serving.http.service import service_of
from dflash_runtime.serving.http.usage import usage_of
from dflash_runtime.serving.streams import AsyncAnswerStream

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """The assistant's next message, whole or as a stream of chunks."""
    service = service_of(request)
    service.check_model(body.model)
    chat = await asyncio.to_thread(prepare, service.decoder.texts, body, service.settings.model)
    urgency = urgency_of(body, service.settings.request_timeout)
    streams = service.decoder.stream_all(chat.requests, urgency, chat.style.shown)
    request.state.streams = streams
    if body.stream:
        return await respond(request, _chunks(chat, streams))
    return JSONResponse(await until_gone(request.receive, _answer(chat, streams)))


async def _answer(chat: Chat, streams: Sequence[AsyncAnswerStream]) -> dict[str, Any]:
    answers = [_WholeAnswer(chat, index) for index in range(len(streams))]
    async for index, step in steps_of(streams):
        answers[index].add(step)
    completions = [stream.completion for stream in streams if stream.completion is not None]
    return {
        **chat.head,
        "object": "chat.completion",
        "choices": [answer.choice for answer in answers],
        "usage": usage_of([completions]),
    }


class _WholeAnswer:
    """One choice, until it is whole."""

    def __init__(self, chat: Chat, index: int) -> None:
        self._text, self._index, self._deltas = ChatText(chat.style), index, list[Delta]()
        self._tokenizer = chat.tokenizer
        self._logprobs: list[dict[str, Any] | None] = []
        self._reason: str | None = None

    def add(self, step: Step) -> None:
        deltas, self._reason = _deltas(self._text, step)
        self._deltas.extend(deltas)
        self._logprobs.append(chat_logprobs(self._tokenizer, step))

    @property
    def choice(self) -> dict[str, Any]:
        return {
            "index": self._index,
            "message": message_of(self._deltas),
            "logprobs": joined(self._logprobs),
            "finish_reason": self._reason,
        }


def _deltas(text: ChatText, step: Step) -> tuple[list[Delta], str | None]:
    """What a step adds to the message, and why the message ends, if it does."""
    deltas = text.push(step.text)
    if step.finish_reason is None:
        return deltas, None
    deltas += text.flush()
    return deltas, "tool_calls" if text.calls and step.finish_reason == "stop" else step.finish_reason


async def _chunks(chat: Chat, streams: Sequence[AsyncAnswerStream]) -> AsyncGenerator[dict[str, Any], None]:
    """The first one comes with the first step. The role goes before all, the finish reason behind."""
    texts, begun = [ChatText(chat.style) for _ in streams], set[int]()
    options = chat.body.stream_options
    usage: dict[str, Any] = {"usage": None} if options and options.include_usage else {}
    head = {**chat.head, "object": "chat.completion.chunk"}
    steps = steps_of(streams)
    try:
        async for index, step in steps:
            if index not in begun:
                begun.add(index)
                yield head | {"choices": [_choice(index, {"role": "assistant", "content": ""})]} | usage
            deltas, reason = _deltas(texts[index], step)
            extra = acceptance_of(step) if options and options.include_acceptance else {}
            logprobs = chat_logprobs(chat.tokenizer, step)
            for delta in deltas or ([{}] if logprobs or extra else []):
                yield head | {"choices": [_choice(index, delta, logprobs)]} | usage | extra
                logprobs, extra = None, {}
            if reason is not None:
                yield head | {"choices": [_choice(index, {}, None, reason)]} | usage
    finally:
        await steps.aclose()
    if usage:
        completions = [stream.completion for stream in streams if stream.completion is not None]
        yield head | {"choices": [], "usage": usage_of([completions])}


def _choice(
    index: int, delta: Delta, logprobs: dict[str, Any] | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
