"""What the target itself writes, with every hidden state on the way: what drafts are held to."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash_export.checkpoint import TargetModel

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A prompt and the target's greedy answer, as one text of T tokens."""

    tokens: tuple[int, ...]
    prompt: int  # how many of them are the prompt's
    hidden: tuple[Tensor, ...]  # [1,T,H] before the first layer, then after each; the last one after the final norm


@torch.no_grad()
def write_answers(target: TargetModel, prompts: Sequence[Tokens], new_tokens: int) -> list[Answer]:
    """transformers' own greedy answers, up to a stop, and one pass over each for its hidden states."""
    return [_answer(target.model, list(prompt), target.stop_token_ids, new_tokens) for prompt in prompts]


def _answer(model: PreTrainedModel, prompt: list[int], stops: Sequence[int], new_tokens: int) -> Answer:
    ids = torch.tensor([prompt])
    written = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=list(stops),
        pad_token_id=stops[0] if stops else 0,
    )
    out = model(written, output_hidden_states=True, use_cache=False)
    return Answer(tokens=tuple(written[0].tolist()), prompt=len(prompt), hidden=tuple(out.hidden_states))
