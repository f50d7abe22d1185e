"""A prompt, in any of its forms, to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from tokenizers import Tokenizer

from dflash_engines.errors import RequestError
from dflash_engines.whole_number import whole_number
from dflash_runtime.chat_template import ChatTemplate, Message

Prompt = str | Sequence[int] | Sequence[Message]


class PromptEncoder:
    """Encodes plain text, token ids and chat messages."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self.template = template

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of `prompt`. Raises RequestError for another type, or for messages without a template.

        Plain text gets the special tokens that the tokenizer adds on its own; in chat messages, the template
        places them all.
        """
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(_encodable(prompt)).ids)
        if _are_ids(prompt):
            return tuple(map(int, prompt))
        if _are_messages(prompt):
            return self._encode_chat(prompt)
        raise RequestError("a prompt is text, a list of token ids, or a list of messages with role and content")

    def _encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.encode_rendered(self.render(messages))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = {},
    ) -> str:
        """Messages as text, by the model's own template (see ChatTemplate.render). Raises RequestError."""
        if self.template is None:
            raise RequestError("this model has no chat template; give the prompt as text or token ids")
        for index, message in enumerate(messages):
            _check_message(index, message)
        return self.template.render(messages, tools, variables)

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Token ids of rendered messages: the template has placed all special tokens."""
        return tuple(self._tokenizer.encode(_encodable(text), add_special_tokens=False).ids)


def _are_ids(prompt: Prompt) -> TypeGuard[Sequence[int]]:
    return _is_list(prompt) and all(whole_number(item) is not None for item in prompt)


def _are_messages(prompt: Prompt) -> TypeGuard[Sequence[Message]]:
    return _is_list(prompt) and all(isinstance(item, Mapping) for item in prompt)


def _check_message(index: int, message: Message) -> None:
    """A message that calls tools may be without content."""
    needed = ("role",) if message.get("tool_calls") and message.get("content") is None else ("role", "content")
    wrong = next((key for key in needed if not isinstance(message.get(key), str)), None)
    if wrong is not None:
        raise RequestError(f"message {index} has no text as its {wrong!r}; give each a role and a content")


def _is_list(prompt: Prompt) -> bool:
    return isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray)


def _encodable(text: str) -> str:
    """Refuse half a surrogate pair, which has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise RequestError(f"the prompt is not valid Unicode at character {e.start}: {e.reason}") from e
    return text
