"""Splits a streamed text at the markers that a model writes: its thinking, and its calls of tools.

A marker may be cut anywhere by the borders of steps; what may become one is held back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["content", "reasoning", "tool_call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What stands between two markers. Without a closing one, it goes on to the end."""

    kind: Kind
    open: str
    close: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some text of one kind; `closed` when its section ended with it."""

    kind: Kind
    text: str
    closed: bool = False


class SectionSplitter:
    """Of one text; `inside` is the section in which it begins, if the prompt has opened one."""

    def __init__(self, sections: Sequence[Section], inside: Section | None = None) -> None:
        self._sections = sections
        self._inside = inside
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        """The pieces that became certain."""
        self._held += text
        pieces: list[Piece] = []
        while (piece := self._next_piece()) is not None:
            pieces.append(piece)
        return pieces

    def flush(self) -> list[Piece]:
        """What is held back; a section that is still open ends here. Call once, at the end."""
        held, self._held = self._held, ""
        if self._inside is not None:
            return [Piece(kind=self._inside.kind, text=held, closed=True)]
        return [Piece(kind="content", text=held)] if held else []

    def _next_piece(self) -> Piece | None:
        """None when nothing more is certain."""
        if self._inside is not None:
            return self._next_inside(self._inside)
        opened = [(self._held.find(s.open), s) for s in self._sections if s.open in self._held]
        if opened:
            at, section = min(opened, key=lambda found: found[0])
            text, self._held, self._inside = self._held[:at], self._held[at + len(section.open) :], section
            return Piece(kind="content", text=text)
        return self._certain("content", [section.open for section in self._sections])

    def _next_inside(self, section: Section) -> Piece | None:
        if section.close is not None and section.close in self._held:
            text, _, self._held = self._held.partition(section.close)
            self._inside = None
            return Piece(kind=section.kind, text=text, closed=True)
        return self._certain(section.kind, [section.close] if section.close is not None else [])

    def _certain(self, kind: Kind, markers: Sequence[str]) -> Piece | None:
        """All but the end that may be the beginning of a marker."""
        held = max((overlap(self._held, marker) for marker in markers), default=0)
        text, self._held = self._held[: len(self._held) - held], self._held[len(self._held) - held :]
        return Piece(kind=kind, text=text) if text else None


def overlap(text: str, marker: str) -> int:
    """How many characters at the end of `text` are a beginning of `marker`, but not all of it."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
