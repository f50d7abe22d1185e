"""The rules that dflash-generate's options put on an answer's tokens."""

from collections.abc import Sequence

from dflash_engines.controls import Controls
from dflash_engines.errors import RequestError
from dflash_runtime.decoder import request_controls


def controls(
    *,
    logit_bias: Sequence[str],
    bad_token_ids: Sequence[int],
    min_tokens: int,
    repetition_penalty: float,
    frequency_penalty: float,
    presence_penalty: float,
    logprobs: int | None,
    as_json: bool,
) -> Controls:
    """`logit_bias` holds texts like 42=-5. Raises RequestError, also where nobody would see the `logprobs`."""
    if logprobs is not None and not as_json:
        raise RequestError("--logprobs is only shown with --json; add it")
    return request_controls(
        logit_bias=_biases(logit_bias),
        bad_token_ids=bad_token_ids,
        min_tokens=min_tokens,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logprobs=logprobs,
    )


def _biases(texts: Sequence[str]) -> dict[int, float]:
    found = dict[int, float]()
    for text in texts:
        token, _, value = text.partition("=")
        try:
            pair = {int(token): float(value)}
        except ValueError as e:
            raise RequestError(f"--logit-bias must be a token id, = and a number, such as 42=-5, not {text!r}") from e
        if found.keys() & pair.keys():
            raise RequestError(f"--logit-bias names token {int(token)} twice; give it once")
        found |= pair
    return found
