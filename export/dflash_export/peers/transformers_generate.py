"""transformers' own `generate`, in fp32, alone and with its prompt lookup."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from dflash_engines.bundle import Bundle
from dflash_export.checkpoint import load_target, locate

_LOOKED_UP = 8  # tokens that prompt lookup proposes at most


def load(bundle: Bundle, path: str | None, threads: int) -> Callable[[Sequence[int], int], list[int]]:
    """The peer `transformers`. Raises CheckpointError without the target's checkpoint."""
    return _generator(load_model(bundle, path, threads), bundle.manifest.stop_token_ids, {})


def load_prompt_lookup(bundle: Bundle, path: str | None, threads: int) -> Callable[[Sequence[int], int], list[int]]:
    """The peer `transformers-prompt-lookup`: drafts are what followed the same words earlier in the text."""
    settings = {"prompt_lookup_num_tokens": _LOOKED_UP}
    return _generator(load_model(bundle, path, threads), bundle.manifest.stop_token_ids, settings)


def load_model(bundle: Bundle, path: str | None, threads: int) -> PreTrainedModel:
    """The bundle's target, or the one at `path`, with the attention that transformers itself would choose."""
    torch.set_num_threads(threads)
    model = load_target(locate(path or bundle.manifest.target.id).folder).model
    model.set_attn_implementation("sdpa")
    return model


def _generator(
    model: PreTrainedModel, stop_token_ids: Sequence[int], settings: dict[str, Any]
) -> Callable[[Sequence[int], int], list[int]]:
    @torch.no_grad()
    def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        found = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False,
            eos_token_id=list(stop_token_ids), pad_token_id=stop_token_ids[0], **settings,
        )  # fmt: skip
        tokens: list[int] = found[0, len(prompt) :].tolist()
        return tokens

    return generate
