"""Batches of answers: which, in what order, and as padded tensors. All of it follows from seed and step."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dflash_training.features import read_states
from dflash_training.store import Example, Store
from dflash_training.target import Target

POOL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Answers padded on the right. `tokens` [B, T+1]; `lengths` tokens, `prompts` prompt tokens, [B];
    `taps` [B, T, N, H] and `last` [B, T, H], the target's."""

    tokens: Tensor
    lengths: Tensor
    prompts: Tensor
    taps: Tensor
    last: Tensor
    sources: tuple[str, ...]


States = Callable[[Sequence[Example]], list[Tensor]]
"""Taps and last hidden state of answers, each [T, N+1, H]: from memory-mapped shards, or recomputed."""


def stored_states(store: Store) -> States:
    """States that stage `responses` or `features` has written."""
    return lambda examples: [store.states(example) for example in examples]


def recomputed_states(target: Target, target_layer_ids: tuple[int, ...], batch_tokens: int) -> States:
    """States made by the target when they are needed, where they do not fit the disk or a GPU is at hand."""
    return lambda examples: read_states(
        target, [example.response for example in examples], target_layer_ids, batch_tokens
    )


def load_batch(states: States, examples: Sequence[Example], max_length: int, device: torch.device) -> Batch:
    """Answers with their states, on the device; longer ones are cut."""
    ids = [example.response.token_ids[: max_length + 1] for example in examples]
    rows = [state[:max_length].to(device) for state in states(examples)]
    padded = pad_sequence(rows, batch_first=True)
    return Batch(
        tokens=pad_sequence([torch.tensor(row) for row in ids], batch_first=True).to(device),
        lengths=torch.tensor([len(row) for row in ids], device=device),
        prompts=torch.tensor([len(example.response.prompt_ids) for example in examples], device=device),
        taps=padded[:, :, :-1],
        last=padded[:, :, -1],
        sources=tuple(example.response.source for example in examples),
    )


def epoch_order(examples: Sequence[Example], batch_size: int, seed: int) -> list[list[Example]]:
    """All examples once, in random batches of like length."""
    generator = random.Random(seed)
    shuffled = generator.sample(examples, len(examples))
    batches = []
    for start in range(0, len(shuffled), POOL * batch_size):
        pool = sorted(shuffled[start : start + POOL * batch_size], key=lambda e: len(e.response.token_ids))
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    generator.shuffle(batches)
    return batches


def split_by_prompt(examples: Sequence[Example], validation: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and validation examples; no prompt is in both. `validation` prompts are held back."""
    prompts = sorted({(e.response.source, e.response.id) for e in examples})
    held = set(random.Random(seed).sample(prompts, min(validation, len(prompts) // 2)))
    train = [e for e in examples if (e.response.source, e.response.id) not in held]
    valid = [e for e in examples if (e.response.source, e.response.id) in held and not e.response.temperature]
    return train, valid


def without_prompts(examples: Sequence[Example], held: Sequence[Example]) -> list[Example]:
    """The examples whose prompt is not among the held-back ones."""
    prompts = {e.response.prompt_ids for e in held}
    return [e for e in examples if e.response.prompt_ids not in prompts]
