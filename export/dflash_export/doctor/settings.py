"""The usual mistakes in a drafter's config, one at a time: what it would be if that one thing were otherwise."""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from typing import Any

from transformers import PreTrainedTokenizerBase

from dflash_export.checkpoint import TargetModel
from dflash_export.doctor.simulation import Setting, with_rope
from dflash_export.drafter_config import DrafterConfig

_THETAS = (1e4, 1e5, 5e5, 1e6, 1e7)
_MOST_MASK_IDS = 24


def alternatives(config: DrafterConfig, target: TargetModel, tokenizer: PreTrainedTokenizerBase) -> list[Setting]:
    """Every config that differs from `config` in one thing that people get wrong."""
    return [
        *_taps(config, len(target.layers)),
        *_masks(config, target, tokenizer),
        *_ropes(config, target),
        *_scales(config, target),
        *_views(config),
    ]


def _taps(config: DrafterConfig, layers: int) -> Iterator[Setting]:
    ids = config.target_layer_ids
    for offset, wrong in ((-1, "high"), (1, "low")):
        if min(ids) + offset >= -1 and max(ids) + offset < layers - 1:
            right = [i + offset for i in ids]
            yield Setting(
                name=f"target_layer_ids one too {wrong}",
                config=config,
                tap_offset=offset,
                fix=f"set dflash_config.target_layer_ids to {right}: ids count layers from 0, and mean their output",
            )
    for name, order in (("ascending", tuple(sorted(ids))), ("reversed", ids[::-1])):
        if order != ids and (name == "ascending" or tuple(sorted(ids)) == ids):
            yield Setting(
                name="target_layer_ids in another order",
                config=replace(config, target_layer_ids=order),
                fix=f"set dflash_config.target_layer_ids to {list(order)}: fc was trained on the taps in this order",
            )


def _masks(config: DrafterConfig, target: TargetModel, tokenizer: PreTrainedTokenizerBase) -> Iterator[Setting]:
    """Added tokens, those called mask first, and the rows behind the tokenizer's last token."""
    rows = target.embedding.shape[0]
    added = tokenizer.get_added_vocab()
    named = sorted(added, key=lambda token: ("mask" not in token.lower(), added[token]))
    spare = range(len(tokenizer), min(len(tokenizer) + 4, rows))
    ids = dict.fromkeys([*(added[token] for token in named), *spare])
    for i in [i for i in ids if i < rows and i != config.mask_token_id][:_MOST_MASK_IDS]:
        yield Setting(
            name="mask_token_id",
            config=replace(config, mask_token_id=i),
            fix=f"set dflash_config.mask_token_id to {i}, {tokenizer.convert_ids_to_tokens(i)!r}",
        )


def _ropes(config: DrafterConfig, target: TargetModel) -> Iterator[Setting]:
    own: dict[str, Any] = dict(config.rope_parameters)
    theirs = target_rope(target)
    thetas = dict.fromkeys([*([theirs["rope_theta"]] if "rope_theta" in theirs else []), *_THETAS])
    for theta in thetas:
        if theta != own["rope_theta"]:
            yield Setting(
                name="rope_theta",
                config=with_rope(config, own | {"rope_theta": theta}),
                fix=f"set the drafter's rope_theta to {theta:g}",
            )
    if own["rope_type"] != "default":
        plain = {"rope_type": "default", "rope_theta": own["rope_theta"]}
        yield Setting(name="rope_scaling", config=with_rope(config, plain), fix="remove the drafter's rope_scaling")
    elif theirs.get("rope_type", "default") in ("linear", "llama3", "yarn"):
        yield Setting(
            name="rope_scaling", config=with_rope(config, theirs), fix="give the drafter the target's rope_scaling"
        )


def target_rope(target: TargetModel) -> dict[str, Any]:
    """The target's rope_parameters; of a family that keeps them by layer type, those of its full layers."""
    rope: dict[str, Any] = dict(target.model.config.get_text_config().to_dict().get("rope_parameters") or {})
    full = rope.get("full_attention")
    return dict(full) if isinstance(full, dict) else rope


def _scales(config: DrafterConfig, target: TargetModel) -> Iterator[Setting]:
    for scale in dict.fromkeys((1.0, sqrt(target.embedding.shape[1]))):
        if abs(scale - config.input_embedding_scale) > 1e-3:
            yield Setting(
                name="input_embedding_scale",
                config=replace(config, input_embedding_scale=scale),
                fix=f"set dflash_config.input_embedding_scale to {scale:g}",
            )


def _views(config: DrafterConfig) -> Iterator[Setting]:
    flipped = tuple(replace(view, causal=not view.causal) for view in config.layers)
    causal = not config.layers[0].causal
    yield Setting(
        name="causality inside the block",
        config=replace(config, layers=flipped),
        fix=f"set is_causal to {str(causal).lower()}, unless layers differ",
    )
    if any(view.window for view in config.layers):
        wide = tuple(replace(view, window=None) for view in config.layers)
        yield Setting(
            name="sliding window",
            config=replace(config, layers=wide),
            fix="check layer_types and sliding_window: full attention drafts better",
        )
