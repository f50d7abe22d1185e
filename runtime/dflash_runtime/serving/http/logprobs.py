"""Log-probabilities of a step's tokens, in OpenAI's two forms."""

from collections.abc import Sequence
from typing import Any

from dflash_runtime.completion import Step


def chat_logprobs(step: Step) -> dict[str, Any] | None:
    """Of a chat's choice."""
    return None


def completion_logprobs(step: Step, offset: int) -> dict[str, Any] | None:
    """Of a plain completion's choice; `offset` characters of text came before."""
    return None


def joined(parts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Of all steps together."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return {key: [item for part in found for item in part[key]] if found[0][key] is not None else None
            for key in found[0]}  # fmt: skip
