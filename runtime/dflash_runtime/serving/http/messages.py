"""Chat messages as OpenAI's API has them, and as chat templates want them."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from dflash_engines.errors import RequestError
from dflash_runtime.chat_template import Message
from dflash_runtime.serving.http.fields import Fields


class TextPart(Fields):
    """Of a message's content. Images and sound are refused."""

    type: Literal["text"]
    text: str


Content = str | list[TextPart]


class FunctionCall(Fields):
    """What the model called before."""

    name: str
    arguments: str  # JSON


class ToolCall(Fields):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class SystemMessage(Fields):
    """Rules for the whole conversation."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Fields):
    """What the user says."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Fields):
    """What the model said before."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    refusal: None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    name: str | None = None


class ToolMessage(Fields):
    """What a called tool returned."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


AnyMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


def template_message(index: int, message: AnyMessage) -> Message:
    """As templates want it: content as one text, arguments of calls as objects. Raises RequestError."""
    fields = message.model_dump(exclude_none=True, exclude_defaults=True)
    if message.role == "developer":
        fields["role"] = "system"  # by its older name, the one that templates know
    if message.content is not None:
        fields["content"] = _text(message.content)
    if isinstance(message, AssistantMessage):
        if message.content is None and not message.tool_calls:
            raise RequestError(f"messages[{index}]: an assistant's message has content or tool_calls")
        for call in fields.get("tool_calls", []):
            call["function"]["arguments"] = _arguments(index, call["function"]["arguments"])
            call["type"] = "function"
    return fields


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _arguments(index: int, text: str) -> Any:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as e:
        raise RequestError(f"messages[{index}].tool_calls: arguments are not JSON: {e}") from e
    if not isinstance(arguments, dict):
        raise RequestError(f"messages[{index}].tool_calls: arguments are not a JSON object")
    return arguments
