"""Counts of tokens, as OpenAI's API tells them. A stop token counts: the model has written it."""

from collections.abc import Sequence
from typing import Any

from dflash_runtime.completion import Completion


def usage_of(prompts: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """Of one or several prompts, each with the answers of its choices; a prompt counts once."""
    prompt = sum(choices[0].prompt_tokens for choices in prompts)
    written = sum(len(completion.token_ids) for choices in prompts for completion in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(choices[0].reused_tokens for choices in prompts)},
    }
