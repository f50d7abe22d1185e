"""What dflash-generate is asked: a prompt from the command line, from stdin, or many from a JSONL file."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash_engines.errors import DflashError, RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What the user says, turn by turn."""

    turns: tuple[str, ...]
    where: str | None = None  # the file and line it stands in

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Errors of the block tell which line of a file they are about."""
        try:
            yield
        except DflashError as e:
            if self.where is None:
                raise
            raise type(e)(f"{self.where}: {e}") from e


def read_conversations(prompt: str | None, file: Path | None) -> list[Conversation]:
    """One conversation for PROMPT (`-` reads stdin), or one for every line of `file`. Raises RequestError."""
    if (prompt is None) == (file is None):
        raise RequestError("give either PROMPT (or - for stdin) or --prompts FILE")
    if file is not None:
        return _read_file(file)
    return [Conversation(turns=(_read_stdin() if prompt == "-" else prompt or "",))]


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as e:
        raise RequestError(f"stdin is not UTF-8 text: {e}") from e


def _read_file(file: Path) -> list[Conversation]:
    try:
        lines = file.read_bytes().split(b"\n")  # str.splitlines would also cut inside of JSON strings
    except OSError as e:
        raise RequestError(f"can't read {file}: {e}") from e
    found = [_conversation(f"{file}:{n}", line) for n, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise RequestError(f"{file} holds no prompt")
    return found


def _conversation(where: str, line: bytes) -> Conversation:
    """A line is an object with "turns", a list of strings, or "prompt", a string; other keys are ignored."""
    try:
        fields = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as e:
        raise RequestError(f"{where}: not UTF-8 text: {e}") from e
    except (ValueError, RecursionError) as e:
        raise RequestError(f"{where}: not valid JSON: {e}") from e
    turns = (fields.get("turns") or [fields.get("prompt")]) if isinstance(fields, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise RequestError(f'{where}: expected an object with "turns" (a list of strings) or "prompt"')
    return Conversation(turns=tuple(turns), where=where)
