"""How much a drafter would be kept under a config, without running the target again.

Every token of an answer is an anchor once: a block is drafted behind it from the recorded hidden states, and as much
of it is kept as equals what the target wrote. One setting may be changed at a time, and both are judged on the same
anchors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

import dflash_export.ops  # noqa: F401 - registers the operators that the drafter's module calls
from dflash_export.checkpoint import TargetModel
from dflash_export.doctor.material import Answer
from dflash_export.drafter import Drafter, KeyValue, Layer, Rope
from dflash_export.drafter_config import DrafterConfig

ALL_ANCHORS, SCREENING = 48, 8  # of an answer at most, evenly spaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The drafter's config with one thing changed; `name` says which, and "" is the config as it is."""

    name: str
    config: DrafterConfig
    fix: str = ""
    tap_offset: int = 0  # added to every target_layer_id


@torch.no_grad()
def kept_tokens(
    target: TargetModel, drafter: Drafter, answers: Sequence[Answer], setting: Setting, most: int = ALL_ANCHORS
) -> Tensor:
    """How many drafted tokens each anchor keeps [anchors], 0..K-1; `most` anchors of an answer."""
    before = drafter.config
    _apply(drafter, setting.config)
    try:
        return torch.cat([_of_answer(target, drafter, answer, setting, most) for answer in answers])
    finally:
        _apply(drafter, before)


def _apply(drafter: Drafter, config: DrafterConfig) -> None:
    """Let the loaded weights compute what `config` says."""
    drafter.config, drafter.rope = config, Rope(config)
    for layer, view in zip(drafter.layers, config.layers, strict=True):
        cast("Layer", layer).self_attn.view = view


def anchors_of(answer: Answer, most: int) -> list[int]:
    """Where blocks begin: tokens of the answer that have at least one behind them."""
    places = range(answer.prompt, len(answer.tokens) - 1)
    return list(places)[:: max(1, -(-len(places) // most))]


def _of_answer(target: TargetModel, drafter: Drafter, answer: Answer, setting: Setting, most: int) -> Tensor:
    anchors = torch.tensor(anchors_of(answer, most), dtype=torch.long)
    if not len(anchors):
        return anchors
    drafted = _draft(target, drafter, answer, setting, anchors)  # [B, K-1]
    # Behind the answer's end nothing is right.
    tokens = torch.tensor([*answer.tokens, *([-1] * setting.config.block_size)])
    wanted = torch.stack([tokens[a + 1 : a + setting.config.block_size] for a in anchors])
    return (drafted == wanted).long().cumprod(1).sum(1)


def _draft(target: TargetModel, drafter: Drafter, answer: Answer, setting: Setting, anchors: Tensor) -> Tensor:
    config, count = setting.config, len(anchors)
    caches = [(k.expand(count, -1, -1, -1), v.expand(count, -1, -1, -1)) for k, v in _context(drafter, answer, setting)]
    block = torch.full((count, config.block_size), config.mask_token_id)
    block[:, 0] = torch.tensor(answer.tokens)[anchors]
    embedded = F.embedding(block, target.embedding) * config.input_embedding_scale
    hidden, _ = drafter.block(embedded, anchors, anchors + config.block_size, caches)
    return F.linear(hidden[:, 1:], target.head).argmax(-1)  # a scale or a soft-cap turns no choice


def _context(drafter: Drafter, answer: Answer, setting: Setting) -> list[KeyValue]:
    """Keys and values of the whole text's rows, with room behind for a block."""
    layers = [tap + setting.tap_offset for tap in setting.config.target_layer_ids]
    taps = torch.cat([answer.hidden[layer + 1] for layer in layers], -1)
    rows = drafter.context(taps, torch.arange(taps.shape[1])[None])
    return [(_padded(k, setting.config), _padded(v, setting.config)) for k, v in rows]


def _padded(rows: Tensor, config: DrafterConfig) -> Tensor:
    return F.pad(rows, (0, 0, 0, config.block_size))


def with_rope(config: DrafterConfig, rope: dict[str, Any]) -> DrafterConfig:
    """The config with another RoPE."""
    return replace(config, rope_parameters=rope)
