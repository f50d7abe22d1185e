"""`response_format`, as OpenAI's API has it, and with three more types: regex, grammar, choice."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_engines.errors import RequestError

Kind = Literal["json_schema", "regex", "grammar", "choice"]
_SCHEMA_KEYS = {"name", "description", "schema", "strict"}  # all but the schema say nothing about the output


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """What the text of an answer must be, as text in the language of its kind (JSON for schemas and choices)."""

    kind: Kind
    source: str


def structured_output(response_format: Any) -> StructuredOutput | None:
    """What `response_format` asks for; None for free text. Raises RequestError, naming the key that is wrong.

    {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {…}}},
    {"type": "regex", "regex": "…"}, {"type": "grammar", "grammar": "…"} or {"type": "choice", "choice": ["…", …]}.
    """
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise RequestError(f'response_format must be an object with a "type", not {response_format!r}')
    kind = response_format.get("type")
    if not isinstance(kind, str) or kind not in _READERS:
        raise RequestError(f"response_format has type {kind!r}; known are {', '.join(_READERS)}")
    needs_value = kind not in ("text", "json_object")
    _check_keys("response_format", response_format, {"type", kind} if needs_value else {"type"})
    if needs_value and kind not in response_format:
        raise RequestError(f'response_format of type {kind!r} needs the key "{kind}"')
    return _READERS[kind](response_format.get(kind))


def _json_schema(value: Any) -> StructuredOutput:
    if not isinstance(value, Mapping) or not isinstance(value.get("schema"), Mapping):
        raise RequestError('response_format: "json_schema" must be an object with a "schema", itself an object')
    _check_keys("response_format.json_schema", value, _SCHEMA_KEYS)
    try:
        return StructuredOutput(kind="json_schema", source=json.dumps(value["schema"], allow_nan=False))
    except (TypeError, ValueError, RecursionError) as e:
        raise RequestError(f"response_format: the schema is not JSON: {e}") from e


def _text_of(kind: Literal["regex", "grammar"], value: Any) -> StructuredOutput:
    if not isinstance(value, str):
        raise RequestError(f"response_format: {kind!r} must be a string, not {value!r}")
    return StructuredOutput(kind=kind, source=value)


def _choice(value: Any) -> StructuredOutput:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) and item for item in value):
        raise RequestError(f"response_format: 'choice' must be a list of texts, none of them empty, not {value!r}")
    return StructuredOutput(kind="choice", source=json.dumps(value))


def _check_keys(where: str, found: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(str(key) for key in found if key not in known):
        raise RequestError(f"{where} has the unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")


_READERS: Mapping[str, Callable[[Any], StructuredOutput | None]] = {
    "text": lambda _: None,
    "json_object": lambda _: StructuredOutput(kind="json_schema", source='{"type": "object"}'),
    "json_schema": _json_schema,
    "regex": lambda value: _text_of("regex", value),
    "grammar": lambda value: _text_of("grammar", value),
    "choice": _choice,
}
