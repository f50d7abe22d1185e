"""Log-probabilities as a caller reads them: token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_engines.engine import Logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """One token of an answer in the target's own distribution, before temperature, filters and every other rule."""

    token_id: int
    logprob: float  # natural logarithm
    top: tuple[tuple[int, float], ...]  # (token id, log-probability) of the likeliest, best first


def token_logprobs(
    found: Logprobs | None, row: int, tokens: Sequence[int], top: int | None
) -> tuple[TokenLogprobs, ...]:
    """Of the first tokens of a slot's row, with as many likeliest ones as asked for; () when none were asked for."""
    if found is None or top is None:
        return ()
    return tuple(
        TokenLogprobs(
            token_id=token,
            logprob=float(found.logprob[row, i]),
            top=tuple(
                zip(found.top_tokens[row, i, :top].tolist(), found.top_logprobs[row, i, :top].tolist(), strict=True)
            ),
        )
        for i, token in enumerate(tokens)
    )
