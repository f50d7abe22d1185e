"""One chat answer's text, step by step, as the parts of a message: content, reasoning, calls of tools."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash_runtime.serving.http.sections import Piece, Section, SectionSplitter
from dflash_runtime.serving.http.tools import PYTHON_TAG, Call, ToolDialect, read_calls

Delta = dict[str, Any]  # of a message, as OpenAI's API has it
THINKING = (
    Section(kind="reasoning", open="<think>", close="</think>"),
    Section(kind="reasoning", open="[THINK]", close="[/THINK]"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStyle:
    """What is to be told apart in an answer."""

    thinking: Section | None = None
    dialect: ToolDialect | None = None  # None when no tools were given: then all is content
    inside: Section | None = None  # the section that the prompt has opened
    calls_only: bool = False  # the answer is the inside of a call, by the grammar
    one_call: bool = False

    @property
    def sections(self) -> tuple[Section, ...]:
        """Those that may begin in the text. Inside of a call, a marker is just part of an argument."""
        if self.calls_only:
            return ()
        tool_call = self.dialect.section if self.dialect is not None else None
        return tuple(section for section in (self.thinking, tool_call) if section is not None)

    @property
    def shown(self) -> tuple[str, ...]:
        """Markers that must stay visible in the text, also where they are special tokens."""
        thinking = (self.thinking.open, self.thinking.close or "") if self.thinking else ()
        return (*thinking, *(self.dialect.markers if self.dialect else ()))


def thinking_of(template: str) -> Section | None:
    """The section for thinking that a chat template knows, if any."""
    return next((s for s in THINKING if s.open in template or (s.close and s.close in template)), None)


def opened_by(prompt: str, sections: Sequence[Section]) -> Section | None:
    """The section whose opening marker ends the rendered prompt."""
    return next((section for section in sections if prompt.rstrip().endswith(section.open)), None)


class ChatText:
    """Turns pieces of text into deltas. Joined, they are the same however the text was divided."""

    def __init__(self, style: ChatStyle) -> None:
        self._style = style
        self._splitter = SectionSplitter(style.sections, style.inside)
        self._begun = False  # whether the running section has shown more than white space
        self._space = ""  # of reasoning, held back: at its end it is dropped
        self._tool_call = ""
        self._bare = style.dialect is not None and (style.dialect.section is None or style.calls_only)
        self.calls = 0

    def push(self, text: str) -> list[Delta]:
        """The deltas that became certain with `text`."""
        return self._deltas(self._splitter.push(text))

    def flush(self) -> list[Delta]:
        """What is held back. Call once, at the end."""
        deltas = self._deltas(self._splitter.flush())
        return deltas + (self._call_deltas(self._tool_call) if self._tool_call else [])

    def _deltas(self, pieces: Sequence[Piece]) -> list[Delta]:
        return [delta for piece in pieces for delta in self._of(piece)]

    def _of(self, piece: Piece) -> list[Delta]:
        if piece.kind == "reasoning":
            return self._reasoning(piece)
        if piece.kind == "tool_call":
            return self._call(piece)
        return self._content(piece.text)

    def _reasoning(self, piece: Piece) -> list[Delta]:
        text = self._space + piece.text
        text = text if self._begun else text.lstrip()
        shown = text.rstrip()
        self._space = "" if piece.closed else text[len(shown) :]
        self._begun = not piece.closed and (self._begun or bool(shown))
        return [{"reasoning_content": shown}] if shown else []

    def _call(self, piece: Piece) -> list[Delta]:
        self._tool_call += piece.text
        if not piece.closed:
            return []
        text, self._tool_call, self._begun = self._tool_call, "", False
        return self._call_deltas(text)

    def _content(self, text: str) -> list[Delta]:
        """White space before the first word is dropped where a model may have thought or called before."""
        if not self._begun and (self._style.sections or self._bare):
            text, self._tool_call = (self._tool_call + text).lstrip(), ""
            if self._bare and _may_be_call(text):
                self._tool_call = text
                return []
        self._begun = self._begun or bool(text)
        return [{"content": text}] if text else []

    def _call_deltas(self, text: str) -> list[Delta]:
        """Calls whole; what is no call is content, marker and all, as the model wrote it."""
        calls = read_calls(text)
        if calls is None:
            section = self._style.dialect.section if self._style.dialect and not self._bare else None
            return [{"content": f"{section.open}{text}{section.close or ''}" if section else text}]
        if self._style.one_call:
            calls = calls[: max(0, 1 - self.calls)]
        return [{"tool_calls": [self._numbered(call)]} for call in calls]

    def _numbered(self, call: Call) -> Delta:
        self.calls += 1
        return {
            "index": self.calls - 1,
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }


def _may_be_call(text: str) -> bool:
    """Whether an answer that is a call, without any marker, may begin like this."""
    return not text or text[0] in "{[" or text.startswith(PYTHON_TAG) or PYTHON_TAG.startswith(text)


def message_of(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The whole message of an answer."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for name in ("content", "reasoning_content"):
        parts = [delta[name] for delta in deltas if name in delta]
        if parts or name == "content":
            message[name] = "".join(parts)
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    if calls:
        message["tool_calls"] = [{key: value for key, value in call.items() if key != "index"} for call in calls]
        message["content"] = message["content"] or None
    return message
