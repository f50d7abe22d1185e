"""Grammars over a tokenizer's tokens, by llguidance: the only module that knows it."""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLTokenizer, grammar_from
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dflash_engines.errors import RequestError
from dflash_runtime.structured.constraint import Masks
from dflash_runtime.structured.response_format import StructuredOutput

MASK_WORD_BITS = 32
BLANKS = r"( |\n{1,2}[ \t]{0,20})"  # between JSON's tokens, as in llama.cpp: a model may not write them for ever
_REMEMBERED = 64  # grammars; the same few come again and again
_SILENT = 0
_POINTER = re.compile(r"\^+|\d+ \|.*|\|.*")


class Grammars:
    """Compiles structured outputs for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_id: int) -> None:
        """`end_token_id` is one that never stands for text; what really ends an answer is up to each request."""
        try:
            self._tokenizer = LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=end_token_id)
        except ValueError as e:
            raise RequestError(f"structured output can't be had with this model's tokenizer: {_one_line(e)}") from e
        self._end_token_id = end_token_id
        self._vocab_size = vocab_size
        self.compile = lru_cache(maxsize=_REMEMBERED)(self._compile)

    def _compile(self, wanted: StructuredOutput) -> "LlguidanceGrammar":
        try:
            matcher = LLMatcher(self._tokenizer, _source(wanted), log_level=_SILENT)
        except ValueError as e:
            raise RequestError(f"response_format: this {wanted.kind} is not understood: {_one_line(e)}") from e
        if matcher.is_error():
            raise RequestError(f"response_format: this {wanted.kind} can't be used: {_one_line(matcher.get_error())}")
        return LlguidanceGrammar(matcher, self._vocab_size, self._end_token_id)


class LlguidanceGrammar:
    """Implements `constraint.Grammar`."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_token_id: int) -> None:
        self._matcher = matcher
        self._words = -(-vocab_size // MASK_WORD_BITS)
        self._end_token_id = end_token_id

    def start(self, stop_token_ids: Collection[int]) -> "LlguidanceConstraint":
        """See `constraint.Grammar.start`."""
        not_the_end, stops = ~_bits([self._end_token_id], self._words), _bits(stop_token_ids, self._words)
        return LlguidanceConstraint(self._matcher.deep_copy(), not_the_end, stops)


class LlguidanceConstraint:
    """Implements `constraint.Constraint`."""

    def __init__(self, matcher: LLMatcher, not_the_end: NDArray[np.int32], stops: NDArray[np.int32]) -> None:
        self._matcher = matcher
        self._not_the_end, self._stops = not_the_end, stops  # [W]
        self.fault: str | None = None

    @property
    def complete(self) -> bool:
        """See `constraint.Constraint.complete`."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def steer(self, drafted: Sequence[int]) -> list[int]:
        """See `constraint.Constraint.steer`."""
        steered, ahead, row = list(drafted), self._matcher.deep_copy(), 0
        while row < len(steered):
            forced = ahead.compute_ff_tokens()[: len(steered) - row]
            steered[row : row + len(forced)] = forced
            known = forced or [steered[row]]
            if not ahead.consume_tokens(known):
                break
            row += len(known)
        return steered

    def masks(self, drafted: Sequence[int]) -> Masks:
        """See `constraint.Constraint.masks`."""
        masks = np.full((len(drafted) + 1, len(self._stops)), -1, np.int32)
        ahead = self._matcher.deep_copy()  # what goes wrong in a draft stays there
        self._fill(ahead, masks, 0)
        if ahead.is_error():
            self.fault = _one_line(ahead.get_error())
        for row, token in enumerate(drafted):
            if not _allows(masks[row], token) or _allows(self._stops, token):
                break
            ahead.consume_token(token)
            self._fill(ahead, masks, row + 1)
        return masks

    def commit(self, token: int) -> None:
        """See `constraint.Constraint.commit`."""
        if not self._matcher.consume_token(token):
            reason = _one_line(self._matcher.get_error())
            raise RequestError(f"the answer can't be kept to its response_format: {reason}")

    def _fill(self, matcher: LLMatcher, masks: Masks, row: int) -> None:
        """A matcher that gave up would allow the end of the answer, and nothing else: here, it allows nothing."""
        llguidance.numpy.fill_next_token_bitmask(matcher, masks, row)
        if matcher.is_error():
            masks[row] = 0
            return
        masks[row] &= self._not_the_end
        if matcher.is_accepting():
            masks[row] |= self._stops


def _source(wanted: StructuredOutput) -> str:
    if wanted.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(wanted.source, defaults={"whitespace_pattern": BLANKS})
    return grammar_from(wanted.kind, wanted.source)


def _bits(token_ids: Collection[int], words: int) -> NDArray[np.int32]:
    """A mask [W] of just these tokens."""
    bits = np.zeros(words * MASK_WORD_BITS, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def _allows(mask: NDArray[np.int32], token: int) -> bool:
    return bool(mask[token // MASK_WORD_BITS] >> (token % MASK_WORD_BITS) & 1)


def _one_line(message: object) -> str:
    """Without the parser's state, and the lines that show the source again to point at a place in it."""
    lines = (line.strip() for line in str(message).split("<state>")[0].splitlines())
    return " ".join(line for line in lines if line and not _POINTER.fullmatch(line))
