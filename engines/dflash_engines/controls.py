"""What a request asks of its tokens beyond how they are drawn: rules that edit the logits, and what is reported.

All hold on every row, drafted or not, since they are applied in the accept program before a token is chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from dflash_engines.accept_variant import TOP_LOGPROBS, AcceptVariant
from dflash_engines.parameter_values import check, real, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """Applied in the order of the fields. Raises RequestError for a wrong value."""

    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    bad_token_ids: frozenset[int] = frozenset()  # never come up
    min_tokens: int = 0  # generated before a token of end_token_ids may come
    end_token_ids: frozenset[int] = frozenset()
    repetition_penalty: float = 1.0  # of tokens in the prompt or generated: divides logits above 0, multiplies others
    frequency_penalty: float = 0.0  # subtracted from a token's logit for each time that it was generated
    presence_penalty: float = 0.0  # subtracted once from the logit of each token that was generated
    constrained: bool = False  # a grammar's mask comes with every pass
    logprobs: int | None = None  # likeliest tokens reported beside the chosen one's log-probability; None for none

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # frozen: plain Python numbers from here on
        for name, low, high, wanted in (
            ("repetition_penalty", 1e-3, 1e3, "a number within 0.001..1000, 1 to leave it out"),
            ("frequency_penalty", -1e3, 1e3, "a number within -1000..1000, 0 to leave it out"),
            ("presence_penalty", -1e3, 1e3, "a number within -1000..1000, 0 to leave it out"),
        ):
            set_field(self, name, real(name, getattr(self, name), low, high, wanted))
        set_field(self, "min_tokens", whole("min_tokens", self.min_tokens, 0, 2**31, "a number of tokens"))
        if self.logprobs is not None:
            wanted = f"None or a whole number within 0..{TOP_LOGPROBS}"
            set_field(self, "logprobs", whole("logprobs", self.logprobs, 0, TOP_LOGPROBS, wanted))

    @property
    def edits(self) -> bool:
        """Whether single tokens are favoured or forbidden."""
        return bool(self.logit_bias or self.bad_token_ids or (self.min_tokens and self.end_token_ids))

    @property
    def penalties(self) -> bool:
        """Whether the tokens so far matter."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    @property
    def needs(self) -> AcceptVariant:
        """What an accept program must be able to do for this."""
        return AcceptVariant(
            bias=self.edits,
            grammar_mask=self.constrained,
            penalties=self.penalties,
            logprobs=0 if self.logprobs is None else TOP_LOGPROBS,
        )


NEUTRAL = Controls()


def biases(values: Any) -> tuple[tuple[int, float], ...]:
    """logit_bias as (token id, bias) pairs. Ids may be text, as in JSON. Raises RequestError."""
    wanted = "a mapping of token ids to numbers"
    check("logit_bias", values, isinstance(values, Mapping), wanted)
    return tuple(sorted((_id(key), real(f"logit_bias[{key!r}]", value, -inf, 1e9, "a number, or -inf"))
                        for key, value in values.items()))  # fmt: skip


def _id(key: Any) -> int:
    if isinstance(key, str) and key.isdecimal() and key.isascii():
        return int(key)
    return whole("a key of logit_bias", key, 0, 2**31, "a token id")
