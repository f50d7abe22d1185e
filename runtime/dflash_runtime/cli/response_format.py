"""The response_format that dflash-generate's options ask for."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_engines.errors import RequestError


def response_format(
    *, json_schema: Path | None, regex: str | None, grammar: Path | None, choices: Sequence[str]
) -> dict[str, Any] | None:
    """None when nothing is asked for. Raises RequestError for more than one of them, or a file that can't be read."""
    asked: list[dict[str, Any]] = []
    if json_schema is not None:
        asked.append({"type": "json_schema", "json_schema": {"schema": _json(json_schema)}})
    if regex is not None:
        asked.append({"type": "regex", "regex": regex})
    if grammar is not None:
        asked.append({"type": "grammar", "grammar": _text(grammar)})
    if choices:
        asked.append({"type": "choice", "choice": list(choices)})
    if len(asked) > 1:
        raise RequestError("give only one of --json-schema, --regex, --grammar and --choice")
    return asked[0] if asked else None


def _json(file: Path) -> Any:
    try:
        return json.loads(_text(file))
    except (ValueError, RecursionError) as e:
        raise RequestError(f"{file} is not valid JSON: {e}") from e


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise RequestError(f"can't read {file}: {e}") from e
