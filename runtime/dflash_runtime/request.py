"""One request in token ids, and the checks that refuse what can't be served as asked."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dflash_engines.contract import Limits
from dflash_engines.errors import RequestError
from dflash_engines.manifest import Manifest
from dflash_engines.sampling import LIKELIEST, SamplingParameters
from dflash_engines.whole_number import whole_number
from dflash_runtime.structured.constraint import Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to generate from which prompt. `block_size` 1 decodes plainly, without the drafter; None: what pays best."""

    tokens: tuple[int, ...]  # the prompt
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    block_size: int | None
    sampling: SamplingParameters = LIKELIEST
    grammar: Grammar | None = None  # of structured output
    stop_strings: tuple[str, ...] = ()  # for whoever makes the text; the loop knows none


def check_request(request: Request, *, limits: Limits, manifest: Manifest) -> None:
    """Raises RequestError, saying which field is wrong and what would be right."""
    vocab_size = manifest.geometry.vocab_size
    if not request.tokens:
        raise RequestError("the prompt is empty; give at least one token")
    if len(request.tokens) > limits.max_len:
        raise RequestError(
            f"the prompt has {len(request.tokens)} tokens, this engine holds {limits.max_len}; "
            "shorten it, or export with a larger --max-len"
        )
    _check_ids("the prompt", request.tokens, vocab_size)
    _check_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    if count("max_new_tokens", request.max_new_tokens) < 1:
        raise RequestError(f"max_new_tokens must be at least 1, not {request.max_new_tokens}")
    largest = max(limits.block_sizes)
    if request.block_size is not None and not 1 <= count("block_size", request.block_size) <= largest:
        raise RequestError(f"block_size must be within 1..{largest} on this engine, not {request.block_size}")
    if request.sampling.draws_drafts and "draft_noise" not in manifest.programs:
        raise RequestError(
            "this bundle has no program 'draft_noise', so its drafter can't draw; export the pair again with "
            "--draft-noise, or leave draft_temperature at 0"
        )
    controls = request.sampling.controls
    _check_ids("logit_bias", (token for token, _ in controls.logit_bias), vocab_size)
    _check_ids("bad_token_ids", controls.bad_token_ids, vocab_size)
    if (needed := request.sampling.variant.name) not in manifest.programs:
        raise RequestError(
            f"this bundle has no program {needed!r}, so it can't choose tokens this way; "
            "export the pair again with dflash-export, or leave out temperature and the other rules"
        )


def count(name: str, value: Any) -> int:
    """`value` as an int. Raises RequestError, naming it, for what is no whole number."""
    if (whole := whole_number(value)) is None:
        raise RequestError(f"{name} must be a whole number, not {value!r}")
    return whole


def token_ids(name: str, values: Any) -> tuple[int, ...]:
    """`values` as ints. Raises RequestError, naming it, for what is no collection of whole numbers."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise RequestError(f"{name} must be a collection of token ids, not {values!r}")
    return tuple(count(f"{name}[{i}]", value) for i, value in enumerate(values))


def _check_ids(where: str, ids: Iterable[int], vocab_size: int) -> None:
    outside = next((i for i in token_ids(where, ids) if not 0 <= i < vocab_size), None)
    if outside is not None:
        raise RequestError(f"{where} holds token id {outside}, outside of the vocabulary 0..{vocab_size - 1}")
