"""How model families write calls of tools, told from their chat templates, and read back into calls."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from json import JSONDecoder
from typing import Any, Literal

from dflash_runtime.serving.http.sections import Section

ArgumentsKey = Literal["arguments", "parameters"]
_NAME_THEN_ARGUMENTS = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\][\w-]*)?\[ARGS\]\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call; `arguments` is JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDialect:
    """One family's way. Without a section, an answer that is nothing but JSON is a call."""

    name: str
    section: Section | None
    arguments_key: ArgumentsKey = "arguments"  # that the model writes; both are read
    in_list: bool = False  # whether the model writes a list of calls

    @property
    def markers(self) -> tuple[str, ...]:
        """What must stay visible in the text, also where it is a special token."""
        if self.section is None:
            return (PYTHON_TAG,)
        return (self.section.open, *_MISTRAL_PARTS, *([self.section.close] if self.section.close else []))

    @property
    def opening(self) -> str:
        """What the text of a call begins with, before its JSON."""
        return "" if self.section is None else self.section.open

    def schema(self, functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """JSON schema of one call of one of these functions, as this family writes it."""
        calls = [self._call_schema(function) for function in functions]
        call = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return {"type": "array", "items": call, "minItems": 1, "maxItems": 1} if self.in_list else call

    def _call_schema(self, function: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                self.arguments_key: function.get("parameters") or {"type": "object"},
            },
            "required": ["name", self.arguments_key],
            "additionalProperties": False,
        }


PYTHON_TAG = "<|python_tag|>"
_MISTRAL_PARTS = ("[ARGS]", "[CALL_ID]")
HERMES = ToolDialect(
    name="hermes", section=Section(kind="tool_call", open="<tool_call>", close="</tool_call>")
)  # qwen, smollm
MISTRAL = ToolDialect(name="mistral", section=Section(kind="tool_call", open="[TOOL_CALLS]", close=None), in_list=True)
PHI = ToolDialect(
    name="phi", section=Section(kind="tool_call", open="<|tool_call|>", close="<|/tool_call|>"), in_list=True
)
GRANITE = ToolDialect(name="granite", section=Section(kind="tool_call", open="<|tool_call|>", close=None), in_list=True)
LLAMA3 = ToolDialect(name="llama3", section=None, arguments_key="parameters")


def dialect_of(template: str) -> ToolDialect | None:
    """The dialect whose markers a chat template writes; None when it has none that is known."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" in template:
        return HERMES
    if "<|tool_call|>" in template:
        return PHI if "<|/tool_call|>" in template else GRANITE
    return LLAMA3 if '"parameters"' in template else None


def read_calls(text: str) -> list[Call] | None:
    """The calls in what stands between the markers; None when it is no call."""
    calls: list[Call] = []
    rest = text.strip().removeprefix(PYTHON_TAG)
    while rest:
        found = _read_one(rest)
        if found is None:
            return None
        more, end = found
        calls.extend(more)
        rest = rest[end:].lstrip(" \r\n\t;,")
    return calls or None


def _read_one(text: str) -> tuple[list[Call], int] | None:
    """The call, or the list of calls, that `text` begins with, and where it ends."""
    named = _NAME_THEN_ARGUMENTS.match(text)
    try:
        value, end = JSONDecoder().raw_decode(text, named.end() if named else 0)
    except (ValueError, RecursionError):
        return None
    if named:
        return ([Call(name=named[1], arguments=_dumps(value))], end) if isinstance(value, dict) else None
    calls = list(_calls(value if isinstance(value, list) else [value]))
    return (calls, end) if len(calls) == (len(value) if isinstance(value, list) else 1) else None


def _calls(values: Sequence[Any]) -> Iterator[Call]:
    for value in values:
        if not isinstance(value, dict):
            continue
        value = value["function"] if isinstance(value.get("function"), dict) else value
        name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):  # some write JSON in a string, as the API does
            arguments = _object(arguments)
        if isinstance(name, str) and name and isinstance(arguments, dict):
            yield Call(name=name, arguments=_dumps(arguments))


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dumps(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)
