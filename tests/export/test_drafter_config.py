"""A drafter's config.json: what is read, what is required, what is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_engines.errors import CheckpointError
from dflash_export.drafter import Rope
from dflash_export.drafter_config import DrafterConfig, LayerAttention
from tests.models.drafters import DrafterSpec, drafter_config
from tests.models.targets import target_config


def raw(spec: DrafterSpec | None = None) -> dict[str, Any]:
    return drafter_config(spec or DrafterSpec(), target_config("llama"))


REQUIRED = ("hidden_size", "num_attention_heads", "head_dim", "num_hidden_layers", "vocab_size", "rms_norm_eps",
            "dflash_config", "intermediate_size", "num_key_value_heads")  # fmt: skip


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_required_key_is_named(key: str) -> None:
    config = raw()
    del config[key]
    with pytest.raises(CheckpointError, match=key):
        DrafterConfig.from_dict(config)


@pytest.mark.parametrize("key", ["target_layer_ids", "mask_token_id"])
def test_a_missing_dflash_key_is_named_and_never_guessed(key: str) -> None:
    config = raw()
    del config["dflash_config"][key]
    with pytest.raises(CheckpointError, match=key):
        DrafterConfig.from_dict(config)


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("dflash_config", "attention_sink_bias", True),
        ("dflash_config", "attention_value_scale", 0.6),
        ("dflash_config", "selector_rank", 256),
        ("dflash_config", "projector_type", "domino"),
        ("dflash_config", "use_swa", True),
        ("", "quantization_config", {"quant_method": "fp8"}),
        ("", "attention_multiplier", 2.0),
    ],
)
def test_a_key_that_is_not_computed_is_refused_by_name(place: str, key: str, value: object) -> None:
    config = raw()
    (config[place] if place else config)[key] = value
    with pytest.raises(CheckpointError, match=key):
        DrafterConfig.from_dict(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": None}, "sliding_window"),
        ({"rope_theta": None}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "key/value heads"),
        ({"block_size": 1}, "block_size"),
        ({"head_dim": "16"}, "head_dim"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"architectures": None}, "architectures"),
        ({"architectures": "DFlashDraftModel"}, "architectures"),
        ({"attention_bias": "false"}, "attention_bias"),
        ({"is_causal": "false"}, "is_causal"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"input_embedding_scale": float("nan")}, "input_embedding_scale"),
        ({"rope_theta": "1e4"}, "rope_theta"),
        ({"rope_scaling": "yarn"}, "rope_scaling"),
        ({"layer_types": 5}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_target_layers": "6"}, "num_target_layers"),
    ],
)
def test_values_that_cannot_be_right_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        DrafterConfig.from_dict(raw() | changes)


def test_block_size_in_dflash_config_comes_first() -> None:
    assert DrafterConfig.from_dict(raw(DrafterSpec(block_size=8, dflash={"block_size": 16}))).block_size == 16


@pytest.mark.parametrize(
    ("dflash", "top", "causal"),
    [
        ({}, {}, (True, False)),
        ({"causal": True}, {}, (True, True)),
        ({"causal": True}, {"is_causal": False}, (False, False)),
    ],
)
def test_causality_comes_from_the_top_then_dflash_config_then_the_layer(
    dflash: dict[str, Any], top: dict[str, Any], causal: tuple[bool, bool]
) -> None:
    spec = DrafterSpec(
        layer_types=("sliding_attention", "full_attention"), sliding_window=8, dflash=dflash, top_level=top
    )
    layers = DrafterConfig.from_dict(raw(spec)).layers
    assert layers == (LayerAttention(causal=causal[0], window=8), LayerAttention(causal=causal[1], window=None))


def test_rope_is_the_same_from_flat_nested_and_scaling_keys() -> None:
    forms = (
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_scaling": {"type": "default", "rope_theta": 5e5}},
    )
    tables = [Rope(DrafterConfig.from_dict(raw(DrafterSpec(rope=form)))).inv_freq for form in forms]
    wanted = 5e5 ** -(torch.arange(0, 16, 2) / 16)
    assert all(torch.allclose(table, wanted) for table in tables)


def test_a_folder_without_config_or_with_broken_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        DrafterConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        DrafterConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="no JSON object"):
        DrafterConfig.from_folder(tmp_path)
