"""From a chat body to requests for the engine: messages, tools and what is forced, through the model's template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

from tokenizers import Tokenizer

from dflash_runtime.decoder import Decoder
from dflash_runtime.request import Request
from dflash_runtime.serving.http.chat_text import ChatStyle, opened_by, thinking_of
from dflash_runtime.serving.http.choices import new_id, requests_of
from dflash_runtime.serving.http.errors import ApiError
from dflash_runtime.serving.http.messages import template_message
from dflash_runtime.serving.http.requests import ChatRequest, NamedTool
from dflash_runtime.serving.http.tools import ToolDialect, dialect_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A body, ready to be answered."""

    body: ChatRequest
    requests: Sequence[Request]  # one a choice
    style: ChatStyle
    tokenizer: Tokenizer
    head: Mapping[str, Any]  # of the answer, and of every chunk


def prepare(texts: Decoder, body: ChatRequest, model: str) -> Chat:
    """Render, encode and check. Raises ApiError or RequestError."""
    template = texts.encoder.template
    if template is None:
        raise ApiError(400, "this model has no chat template; use /v1/completions", param="messages")
    dialect = _dialect(body, template.source, "tools" in template.variables)
    thinking = thinking_of(template.source)
    messages = [template_message(i, message) for i, message in enumerate(body.messages)]
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools] if dialect is not None else None
    prompt = texts.encoder.render(messages, tools, body.chat_template_kwargs)
    forced = _forced_functions(body)
    response_format: Mapping[str, Any] | None = body.response_format
    if forced and dialect is not None:
        prompt, response_format = prompt + dialect.opening, _format_of_call(dialect, forced)
    style = ChatStyle(
        thinking=thinking,
        dialect=dialect,
        inside=opened_by(prompt, [thinking] if thinking else []),
        calls_only=bool(forced),
        one_call=not body.parallel_tool_calls,
    )
    requests = requests_of(
        texts,
        body,
        texts.encoder.encode_rendered(prompt),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        response_format=response_format,
        logprobs=_top_logprobs(body),
    )
    head = {"id": new_id("chatcmpl"), "created": int(time()), "model": model}
    return Chat(body=body, requests=requests, style=style, tokenizer=texts.tokenizer, head=head)


def _top_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _dialect(body: ChatRequest, source: str, takes_tools: bool) -> ToolDialect | None:
    """How this model calls tools, when it may. Raises ApiError when it can't."""
    if not body.tools:
        if body.tool_choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice asks for a call, but no tools are given", param="tool_choice")
        return None
    dialect = dialect_of(source) if takes_tools else None
    if dialect is None:
        raise ApiError(
            400,
            "this model's chat template takes no tools; leave them out",
            code="unsupported_parameter",
            param="tools",
        )
    return None if body.tool_choice == "none" else dialect


def _forced_functions(body: ChatRequest) -> list[dict[str, Any]]:
    """The functions of which one must be called; none when the model is free. Raises ApiError."""
    functions = [tool.function.model_dump(exclude_none=True) for tool in body.tools]
    if body.tool_choice == "required":
        found = functions
    elif isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        found = [function for function in functions if function["name"] == name]
        if not found:
            raise ApiError(400, f"tool_choice names {name!r}, which is none of the tools", param="tool_choice")
    else:
        if body.tool_choice != "none" and any(function.get("strict") for function in functions):
            raise ApiError(
                400,
                "strict is kept only where a call is certain: set tool_choice to 'required' or to a function, "
                "or leave out strict",
                code="unsupported_parameter",
                param="tools",
            )
        return []
    if body.response_format is not None:
        raise ApiError(400, "an answer can't be both a call and of a response_format", param="response_format")
    return found


def _format_of_call(dialect: ToolDialect, functions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "call", "schema": dialect.schema(functions)}}
