"""How much of an answer was drafted, beside its text: a field of our own, sent when asked for."""

from typing import Any

from dflash_runtime.completion import Step


def acceptance_of(step: Step) -> dict[str, Any]:
    """Of one step. Its first `accepted` tokens were drafted, and their text is the first part of its text."""
    return {
        "acceptance": {
            "tokens": len(step.token_ids),
            "accepted": step.accepted,
            "accepted_text": step.accepted_text,
            "text": step.text,
            "acceptance_length": step.acceptance_length,
            "block_size": step.block_size,
        }
    }
