"""The accept programs that a bundle holds: a ladder, so that a request pays only for what it uses."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

TOP_LOGPROBS = 20  # likeliest tokens that are reported; a request may show fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptVariant:
    """What an `accept` program can do; a request pays only for what it uses."""

    sampling: bool = False  # temperature and min_p
    filters: bool = False  # top_k and top_p
    logprobs: int = 0  # the top n reported beside the chosen token's
    bias: bool = False  # logit_bias, banned tokens, min_tokens
    grammar_mask: bool = False
    penalties: bool = False
    rejection: bool = False  # the classical rule, for a drafter that draws and tells its probabilities

    @property
    def name(self) -> str:
        """The program's file name without its ending: `accept`, or `accept_sampling_bias`, say."""
        marks = {"sampling": self.sampling, "filters": self.filters, f"logprobs{self.logprobs}": self.logprobs > 0,
                 "bias": self.bias, "mask": self.grammar_mask, "penalties": self.penalties,
                 "rejection": self.rejection}  # fmt: skip
        return "_".join(["accept", *(mark for mark, used in marks.items() if used)])

    def covers(self, other: "AcceptVariant") -> bool:
        """Whether this one can do all that `other` can."""
        return all(getattr(self, f.name) >= getattr(other, f.name) for f in fields(self))


GREEDY = AcceptVariant()
SAMPLING = AcceptVariant(sampling=True)
FILTERED = AcceptVariant(sampling=True, filters=True)
CONSTRAINED = AcceptVariant(grammar_mask=True)
REPORTED = AcceptVariant(logprobs=TOP_LOGPROBS)
EVERYTHING = AcceptVariant(
    sampling=True, filters=True, logprobs=TOP_LOGPROBS, bias=True, grammar_mask=True, penalties=True
)
REJECTION = AcceptVariant(sampling=True, rejection=True)  # in no bundle: our drafters have no such heads
# Those that a bundle holds, the cheapest first. The last one covers all: a rule that a slot doesn't use is given
# its neutral value, and changes no bit of that slot's tokens. Processor time of one core for 8 rows of 49152 tokens:
# 0.7 ms, sampling 1.0, mask 2.0, logprobs 1.3, filters 2.4 (8 where a threshold has to be searched), everything 5.2.
ACCEPT_VARIANTS = (GREEDY, SAMPLING, CONSTRAINED, REPORTED, FILTERED, EVERYTHING)


def cheapest(needed: Iterable[AcceptVariant]) -> AcceptVariant:
    """The first variant that can do all that is needed."""
    wanted = tuple(needed)
    return next(variant for variant in ACCEPT_VARIANTS if all(map(variant.covers, wanted)))
