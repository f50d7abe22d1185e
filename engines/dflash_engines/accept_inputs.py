"""What the rules of each slot put into accept's inputs; neutral values where a slot doesn't use a rule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.backend import Buffers
from dflash_engines.contract import Geometry
from dflash_engines.controls import Controls
from dflash_engines.engine import History
from dflash_engines.errors import EngineError
from dflash_engines.sampling import LIKELIEST, SamplingParameters

Mask = NDArray[np.int32]  # [K, W] for the rows of a block: one bit a token, 0 forbids
ALLOWED = -1  # a mask word of ones
# Bindings that have the name of the field they come from.
_CHOICE = {field.name for field in fields(SamplingParameters)}
_PENALTIES = {"repetition_penalty", "frequency_penalty", "presence_penalty"}


class SlotRules:
    """One request's rules, and as much of its tokens as they need."""

    def __init__(self, sampling: SamplingParameters, history: History | None = None) -> None:
        self.sampling = sampling
        controls, self._history = sampling.controls, _frozen(history or History())
        if (controls.penalties or controls.min_tokens) and not self._history.prompt_length:
            raise EngineError("penalties and min_tokens need the request's tokens so far; give its history")
        self._bias: NDArray[np.float32] | None = None  # [2, V]
        self._prompt: NDArray[np.bool_] | None = None  # [V]
        self._generated: NDArray[np.float32] | None = None  # [V]

    @property
    def counts_tokens(self) -> bool:
        """Whether every committed token changes an input: no iteration may be launched before the last is known."""
        return self.sampling.controls.penalties

    def commit(self, tokens: Iterable[int]) -> None:
        """Count tokens that an iteration has added."""
        if self._generated is not None:
            np.add.at(self._generated, list(tokens), 1)

    def fill(self, arrays: Buffers, row: int, mask: Mask | None) -> None:
        """Write row `row` of those inputs that the variant of accept has."""
        for name in _CHOICE & arrays.keys():
            arrays[name][row] = getattr(self.sampling, name)
        if "grammar_mask" in arrays:
            _fill_mask(arrays["grammar_mask"][row], mask)
        if "bias" in arrays:
            self._fill_bias(arrays["bias"][row])
            arrays["min_end"][row] = self._history.prompt_length + self.sampling.controls.min_tokens
        if "generated" in arrays:
            self._fill_counts(arrays["in_prompt"][row], arrays["generated"][row])
            for name in _PENALTIES:
                arrays[name][row] = getattr(self.sampling.controls, name)

    def _fill_bias(self, rows: NDArray[Any]) -> None:
        if not self.sampling.controls.edits:
            rows[:] = 0
            return
        if self._bias is None:
            self._bias = bias(self.sampling.controls, rows.shape[1])
        rows[:] = self._bias

    def _fill_counts(self, in_prompt: NDArray[Any], generated: NDArray[Any]) -> None:
        if not self.counts_tokens:
            in_prompt[:], generated[:] = False, 0
            return
        if self._prompt is None or self._generated is None:
            self._count(len(in_prompt))
        in_prompt[:], generated[:] = self._prompt, self._generated

    def _count(self, vocab_size: int) -> None:
        tokens, prompt = np.asarray(self._history.tokens, np.int64), self._history.prompt_length
        self._prompt = np.zeros(vocab_size, np.bool_)
        self._prompt[tokens[:prompt]] = True
        self._generated = np.bincount(tokens[prompt:], minlength=vocab_size).astype(np.float32)


def _frozen(history: History) -> History:
    """The tokens as they are now; their list may grow."""
    return History(tokens=tuple(history.tokens), prompt_length=history.prompt_length)


IDLE = SlotRules(LIKELIEST)


def bias(controls: Controls, vocab_size: int) -> NDArray[np.float32]:
    """[2, V] to add to logits: while the answer may not end yet, and afterwards."""
    rows = np.zeros((2, vocab_size), np.float32)
    for token, value in controls.logit_bias:
        rows[:, token] = value
    rows[:, list(controls.bad_token_ids)] = -np.inf
    rows[0, list(controls.end_token_ids)] = -np.inf
    return rows


def _fill_mask(rows: NDArray[Any], mask: Mask | None) -> None:
    """Rows behind the block are padding."""
    rows[:] = ALLOWED
    if mask is not None:
        rows[: len(mask)] = mask


def check_masks(rules: Sequence[SlotRules], masks: Mapping[int, Mask], geometry: Geometry, rows: int) -> None:
    """Raises EngineError unless exactly the constrained slots have a mask, of `rows` rows."""
    constrained = {slot for slot, rule in enumerate(rules) if rule.sampling.controls.constrained}
    if constrained != masks.keys():
        raise EngineError(f"slots {sorted(constrained)} are constrained, masks came for {sorted(masks)}")
    for slot, mask in masks.items():
        if mask.shape != (rows, geometry.mask_words) or mask.dtype != np.int32:
            raise EngineError(f"the mask of slot {slot} must be int32 [{rows}, {geometry.mask_words}], "
                              f"not {mask.dtype} {list(mask.shape)}")  # fmt: skip
