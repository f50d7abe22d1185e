"""Token ids to text, piece by piece: a character is never split, and the pieces joined are the whole text.

`tokenizers.decoders.DecodeStream` comes close, but has no flush, fails on bytes that are no UTF-8, and takes
quadratic time on them.
"""

import codecs
import re
from collections.abc import Collection
from typing import Protocol

from tokenizers import Tokenizer, decoders

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class Detokenizer(Protocol):
    """Turns the ids of one text into pieces."""

    def push(self, token_ids: tuple[int, ...]) -> str:
        """The text that became certain with these ids; may be empty."""
        ...

    def flush(self) -> str:
        """The text still held back, such as half a character. Call once, at the end."""
        ...


class NewDetokenizer(Protocol):
    """Begins a text."""

    def __call__(self, shown: Collection[str] = ()) -> Detokenizer:
        """Of the special tokens, those named in `shown` give their name as text, the others none."""
        ...


def detokenizers(tokenizer: Tokenizer) -> NewDetokenizer:
    """Makes, for each text, the detokeniser that fits `tokenizer`'s decoder."""
    special = special_tokens(tokenizer)
    byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
    kind = ByteLevelDetokenizer if byte_level else WindowDetokenizer

    def detokenizer(shown: Collection[str] = ()) -> Detokenizer:
        return kind(tokenizer, frozenset(i for name, i in special.items() if name not in shown))

    return detokenizer


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens that give no text, by their names."""
    return {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What one token, special or not, adds in the midst of a text; may be a part of a character."""
    token = tokenizer.id_to_token(token_id) or ""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return _byte_level(token)
    if _BYTE_TOKEN.fullmatch(token):
        return bytes([int(token[3:5], 16)])
    once, twice = (tokenizer.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
    return str(twice)[len(once) :].encode()  # decoders treat a text's beginning in their own way


def _byte_level(token: str) -> bytes:
    """Names are made of stand-ins for bytes; an added token stands for itself."""
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return token.encode()


class ByteLevelDetokenizer:
    """For byte-level BPE: every token is a run of bytes, and Python's own decoder holds half characters."""

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: tuple[int, ...]) -> str:
        """See `Detokenizer.push`."""
        return self._decoder.decode(b"".join(map(self._bytes, token_ids)))

    def flush(self) -> str:
        """See `Detokenizer.flush`."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special:
            return b""
        return _byte_level(token)


class WindowDetokenizer:
    """For every other decoder: the text is what the decoder adds when it sees a few more tokens.

    Byte tokens such as <0xE4> are held until another kind follows: one wrong byte changes the text of all.
    """

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._context: list[int] = []  # told already; decoders treat a text's beginning in their own way
        self._held: list[int] = []

    def push(self, token_ids: tuple[int, ...]) -> str:
        """See `Detokenizer.push`."""
        self._held.extend(i for i in token_ids if i not in self._special)
        if not self._held or _BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(self._held[-1]) or ""):
            return ""
        text = self._untold()
        return "" if text.endswith("\ufffd") else self._tell(text)

    def flush(self) -> str:
        """See `Detokenizer.flush`."""
        return self._tell(self._untold())

    def _untold(self) -> str:
        told = self._decode(self._context)
        return self._decode(self._context + self._held)[len(told) :]

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def _tell(self, text: str) -> str:
        if self._held:
            self._context, self._held = self._held, []
        return text


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes are their own character, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
