"""Where an answer ends for its text: the first stop string to be complete, cut off with all that follows.

Of several that become complete with the same character, the one that begins first counts. So the cut doesn't
depend on how the text was divided into pieces.
"""

from collections.abc import Sequence
from typing import Any

from dflash_engines.errors import RequestError


def stop_strings(stop: Any) -> tuple[str, ...]:
    """The value of `stop` as OpenAI's API has it: None, a string, or several. Raises RequestError for another."""
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(string, str) for string in strings):
        raise RequestError(f"stop must be a string or a list of strings, not {stop!r}")
    if "" in strings:
        raise RequestError("stop holds an empty string, which would end every answer at once; leave it out")
    return tuple(strings)


class StopScanner:
    """Lets the text of one answer through up to a stop string, and holds back what may become one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""
        self.matched = False  # whether a stop string was found: the answer is over

    def push(self, text: str) -> str:
        """The text that can't be part of a stop string any more."""
        text = self._held + text
        begin = self._match(text)
        if begin is not None:
            self.matched, self._held = True, ""
            return text[:begin]
        held = max((_overlap(text, string) for string in self._strings), default=0)
        shown = len(text) - held
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What is still held back. Call once, at the end."""
        held, self._held = self._held, ""
        return held

    def _match(self, text: str) -> int | None:
        """Where the first stop string to be complete begins."""
        found = ((text.find(string), len(string)) for string in self._strings)
        ends = [(begin + length, begin) for begin, length in found if begin >= 0]
        return min(ends)[1] if ends else None


def _overlap(text: str, string: str) -> int:
    """How many characters at the end of `text` are a beginning of `string`, but not all of it."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
