"""Stage `features`: taps and last hidden states of answers that were made elsewhere or without them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dflash_training.generate import GenerateConfig, stack_states
from dflash_training.responses import manifest
from dflash_training.slots import PassingSide
from dflash_training.store import Response, read_responses, shard_names, write_manifest, write_responses, write_states
from dflash_training.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturesConfig:
    """`answers`: files of answers (`*.jsonl.gz`). `batch_tokens`: padded tokens in one pass of the target."""

    answers: tuple[Path, ...]
    out: Path
    target_layer_ids: tuple[int, ...]
    max_length: int = 576
    batch_tokens: int = 4096
    shard_size: int = 256


def length_batches(responses: Sequence[Response], batch_tokens: int) -> list[list[int]]:
    """Indices in batches of like length, each at most `batch_tokens` when padded."""
    order = sorted(range(len(responses)), key=lambda i: responses[i].state_rows)
    batches: list[list[int]] = [[]]
    for index in order:
        if batches[-1] and (len(batches[-1]) + 1) * responses[index].state_rows > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return [batch for batch in batches if batch]


@torch.no_grad()
def read_states(
    target: Target, responses: Sequence[Response], target_layer_ids: tuple[int, ...], batch_tokens: int
) -> list[Tensor]:
    """States [T, N+1, H] of each answer, every token but the last, on the target's device."""
    states: list[Tensor] = [torch.empty(0)] * len(responses)
    for batch in length_batches(responses, batch_tokens):
        rows = max(responses[i].state_rows for i in batch)
        ids = [list(responses[i].token_ids[:-1]) for i in batch]
        tokens = torch.tensor([row + [0] * (rows - len(row)) for row in ids], device=target.device)
        positions = torch.arange(rows, device=target.device).expand(len(batch), -1)
        mask = torch.ones(rows, rows, dtype=torch.bool, device=target.device).tril()
        mask = mask.expand(len(batch), 1, -1, -1)
        out = target.read(tokens, positions, mask, PassingSide(target.dtype), states=True)
        stacked = stack_states(out, target_layer_ids)
        for row, index in enumerate(batch):
            states[index] = stacked[row, : responses[index].state_rows].clone()
    return states


def make_features(
    target: Target, config: FeaturesConfig, *, on_shard: Callable[[int, int], None] = lambda *_: None
) -> int:
    """Write answers and states as shards of a store; goes on where an earlier run stopped.

    Answers that are too long are left out. Returns the number of answers in the store.
    """
    generate = GenerateConfig(target_layer_ids=config.target_layer_ids, max_prompt=config.max_length, max_new=0)
    write_manifest(config.out, manifest(target, generate))
    responses = [r for path in config.answers for r in read_responses(path) if r.state_rows <= config.max_length]
    done = len(shard_names(config.out))
    shards = range(0, len(responses), config.shard_size)
    for number, start in enumerate(shards):
        if number >= done:
            part = responses[start : start + config.shard_size]
            states = read_states(target, part, config.target_layer_ids, config.batch_tokens)
            write_states(config.out / f"{number:05}.states.npy", [rows.cpu() for rows in states])
            write_responses(config.out / f"{number:05}.jsonl.gz", part)
        on_shard(number + 1, len(shards))
    return len(responses)
