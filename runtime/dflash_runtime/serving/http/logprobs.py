"""Log-probabilities of a step's tokens, in OpenAI's two forms: one for each token that usage counts."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from dflash_runtime.completion import Step
from dflash_runtime.detokenize import token_bytes

LEAST = -9999.0  # stands for minus infinity, which JSON has not


def chat_logprobs(tokenizer: Tokenizer, step: Step) -> dict[str, Any] | None:
    """Of a chat's choice."""
    if not step.logprobs:
        return None
    return {
        "content": [
            _entry(tokenizer, found.token_id, found.logprob)
            | {"top_logprobs": [_entry(tokenizer, token, logprob) for token, logprob in found.top]}
            for found in step.logprobs
        ],
        "refusal": None,
    }


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    """A token may be a part of a character: its bytes tell which."""
    raw = token_bytes(tokenizer, token_id)
    return {"token": raw.decode(errors="replace"), "bytes": list(raw), "logprob": max(logprob, LEAST)}


def completion_logprobs(tokenizer: Tokenizer, step: Step, offset: int) -> dict[str, Any] | None:
    """Of a plain completion's choice; `offset` characters of text came before."""
    if not step.logprobs:
        return None
    tokens = [_text(tokenizer, found.token_id) for found in step.logprobs]
    top = [{_text(tokenizer, token): max(logprob, LEAST) for token, logprob in found.top} for found in step.logprobs]
    return {
        "tokens": tokens,
        "token_logprobs": [max(found.logprob, LEAST) for found in step.logprobs],
        "top_logprobs": top if any(top) else None,
        "text_offset": [offset + sum(map(len, tokens[:i])) for i in range(len(tokens))],
    }


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return token_bytes(tokenizer, token_id).decode(errors="replace")


def joined(parts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Of all steps together."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return {key: _joined([part[key] for part in found]) for key in found[0]}


def _joined(lists: Sequence[list[Any] | None]) -> list[Any] | None:
    return None if lists[0] is None else [item for items in lists if items is not None for item in items]
