"""What generation returns: a step for every target pass, and the whole answer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_engines.engine import Timing
from dflash_runtime.slot import FinishReason
from dflash_runtime.token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one target pass added to the answer.

    A stop token is part of `token_ids`, as in `generate` of transformers, but never of `text`. The text lags
    behind the ids while a character is incomplete.
    """

    token_ids: tuple[int, ...]
    text: str
    accepted: int  # of token_ids, the leading ones that were drafted; the rest is the target's own
    accepted_text: str  # the leading part of `text` that came with the drafted tokens
    acceptance_length: int | None  # tokens gained by the pass before any truncation; None for the prefill's
    finish_reason: FinishReason | None
    block_size: int | None = None  # of the pass, anchor included; None for the prefill's
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each of token_ids, where they were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Seconds of one answer by where they went. `host` is everything outside of the programs."""

    prefill: float
    draft: float
    target: float
    accept: float
    host: float

    @property
    def decode(self) -> float:
        """Seconds that were not the prompt's."""
        return self.draft + self.target + self.accept + self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    acceptance_lengths: tuple[int, ...]  # tokens gained by each verifying pass, before any truncation
    finish_reason: FinishReason
    prompt_tokens: int
    reused_tokens: int  # prompt tokens whose cache rows the request before had left
    seconds: TimeSplit
    block_sizes: tuple[int, ...]  # of each verifying pass, anchor included; 1 is plain
    seed: int | None = None  # with which the answer was sampled; None for a greedy one
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each of token_ids, where they were asked for

    @property
    def acceptance_length(self) -> float:
        """Mean tokens gained by a verifying pass; 1 without any."""
        lengths = self.acceptance_lengths
        return sum(lengths) / len(lengths) if lengths else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Drafted tokens that were accepted, over all drafted ones; 0 without any."""
        drafted = sum(size - 1 for size in self.block_sizes)
        return sum(length - 1 for length in self.acceptance_lengths) / drafted if drafted else 0.0

    @property
    def acceptance_histogram(self) -> dict[int, int]:
        """How many verifying passes gained that many tokens, ascending."""
        return dict(sorted(Counter(self.acceptance_lengths).items()))

    @property
    def block_size_histogram(self) -> dict[int, int]:
        """How many verifying passes had that block size, ascending; 1 is plain."""
        return dict(sorted(Counter(self.block_sizes).items()))

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """For the first drafted token, the second, …: the share of passes with such a draft that accepted it."""
        passes = list(zip(self.acceptance_lengths, self.block_sizes, strict=True))
        return tuple(
            sum(length > position for length, _ in passes) / sum(size > position for _, size in passes)
            for position in range(1, max(self.block_sizes, default=1))
        )

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: the tokens after the first, over the time that was not the prompt's."""
        return decoding_speed([self])


def decoding_speed(completions: Sequence[Completion]) -> float:
    """Tokens per second over all of them; 0 when none has a token after its first."""
    tokens = sum(len(completion.token_ids) - 1 for completion in completions)
    return tokens / sum(completion.seconds.decode for completion in completions) if tokens else 0.0


def time_split(before: Timing, after: Timing, wall: float) -> TimeSplit:
    """Where `wall` seconds went, of which the engine's programs took the difference of the two timings."""
    prefill, draft = after.prefill - before.prefill, after.draft - before.draft
    target, accept = after.target - before.target, after.accept - before.accept
    host = wall - prefill - draft - target - accept
    return TimeSplit(prefill=prefill, draft=draft, target=target, accept=accept, host=host)
