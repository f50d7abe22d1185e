"""With the drafter, without it, and transformers: what it means that all write the same tokens."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dflash_runtime.completion import Completion
from dflash_runtime.decoder import Decoder
from dflash_runtime.prompt import Prompt

NEAR_TIE = 1e-3  # a logit margin that summation order may turn
Written = tuple[Prompt, Completion]


def write(decoder: Decoder, prompts: Iterable[Prompt], new_tokens: int, block_sizes: Sequence[int]) -> list[Written]:
    """Every prompt at every block size; the answers must be one and the same."""
    written = []
    for prompt in prompts:
        plain = decoder.complete(prompt, max_new_tokens=new_tokens, block_size=1)
        for block_size in block_sizes:
            found = decoder.complete(prompt, max_new_tokens=new_tokens, block_size=block_size)
            assert found.token_ids == plain.token_ids, f"block size {block_size}: {prompt}"
            assert (found.text, found.finish_reason) == (plain.text, plain.finish_reason)
        written.append((prompt, plain))
    return written


@torch.no_grad()
def near_ties(model: PreTrainedModel, prompt: list[int], answer: tuple[int, ...]) -> int:
    """How often transformers, given the same tokens before, prefers another one by less than a near-tie.

    One teacher-forced pass: where no token differs, greedy decoding in transformers writes this very answer.
    """
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    margin = logits.max(-1).values - chosen
    assert float(margin.max()) < NEAR_TIE, f"token {int(margin.argmax())} of the answer is off by {float(margin.max())}"
    return int((margin > 0).sum())


def assert_transformers_agrees(decoder: Decoder, target: Path, written: Sequence[Written]) -> None:
    """At most one near-tie in 1,000 tokens, and no other difference."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    tokens = sum(len(found.token_ids) for _, found in written)
    ties = sum(near_ties(model, list(decoder.encoder.encode(m)), found.token_ids) for m, found in written)
    assert ties <= tokens / 1000
