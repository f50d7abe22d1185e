"""A body's fields and its prompt, as requests for the engine: one for each of the `n` choices."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_engines.sampling import MAX_SEED, SamplingParameters
from dflash_runtime.decoder import Decoder, request_controls, sampling_parameters
from dflash_runtime.request import Request
from dflash_runtime.serving.generation import Urgency
from dflash_runtime.serving.http.errors import ApiError
from dflash_runtime.serving.http.requests import GenerationFields


def urgency_of(body: GenerationFields, most: float | None) -> Urgency:
    """The request's own timeout, at most the server's."""
    timeouts = [timeout for timeout in (body.timeout, most) if timeout is not None]
    return Urgency(priority=body.priority, timeout=min(timeouts, default=None))


def requests_of(
    texts: Decoder,
    body: GenerationFields,
    tokens: tuple[int, ...],
    *,
    max_tokens: int | None,
    response_format: Mapping[str, Any] | None,
    logprobs: int | None,
) -> list[Request]:
    """The checked requests of one prompt. Choice i draws with the seed after that of choice i-1.

    Without `max_tokens`, an answer may go on to the end of the context. Raises ApiError or RequestError.
    """
    longest = texts.engine.limits.max_len
    if len(tokens) > longest:
        raise ApiError(
            400,
            f"this model's context is {longest} tokens, the prompt has {len(tokens)}; shorten it",
            code="context_length_exceeded",
            param="prompt",
        )
    sampling = _sampling(body, logprobs)
    first = texts.request(
        tokens,
        longest + 1 - len(tokens) if max_tokens is None else max_tokens,
        body.block_size,
        body.stop_token_ids,
        sampling,
        stop=body.stop,
        response_format=response_format,
    )
    return [_with_seed(first, (sampling.seed + i) % (MAX_SEED + 1)) for i in range(body.n)]


def _sampling(body: GenerationFields, logprobs: int | None) -> SamplingParameters:
    controls = request_controls(
        logit_bias=body.logit_bias,
        bad_token_ids=(),
        min_tokens=body.min_tokens,
        repetition_penalty=body.repetition_penalty,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        logprobs=logprobs,
    )
    return sampling_parameters(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        seed=body.seed,
        controls=controls,
    )


def _with_seed(request: Request, seed: int) -> Request:
    return replace(request, sampling=replace(request.sampling, seed=seed))


def new_id(prefix: str) -> str:
    """Of an answer."""
    return f"{prefix}-{secrets.token_hex(16)}"
