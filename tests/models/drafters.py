"""Tiny random DFlash drafters in z-lab's format, for any tiny target."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedConfig

from tests.models.byte_tokenizer import MASK_TOKEN_ID

FLAT_ROPE: dict[str, Any] = {"rope_theta": 10000.0, "rope_scaling": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec:
    """The shape of a drafter. `rope` holds flat keys (rope_theta, rope_scaling) or a nested rope_parameters;
    `dflash` and `top_level` are further keys of dflash_config and of config.json."""

    target_layer_ids: tuple[int, ...] = (0, 2)
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 96
    attention_bias: bool = False
    layer_types: tuple[str, ...] | None = None  # all full
    sliding_window: int | None = None
    block_size: int = 8
    mask_token_id: int = MASK_TOKEN_ID
    rope: dict[str, Any] = field(default_factory=lambda: FLAT_ROPE)
    dflash: dict[str, Any] = field(default_factory=dict)
    top_level: dict[str, Any] = field(default_factory=dict)


def drafter_config(spec: DrafterSpec, target: PreTrainedConfig) -> dict[str, Any]:
    """config.json as z-lab writes it."""
    layer_types = spec.layer_types or ("full_attention",) * spec.num_layers
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": spec.block_size,
        "dflash_config": {
            "mask_token_id": spec.mask_token_id,
            "target_layer_ids": list(spec.target_layer_ids),
            **spec.dflash,
        },
        "num_target_layers": target.num_hidden_layers,
        "hidden_size": target.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "num_hidden_layers": spec.num_layers,
        "layer_types": list(layer_types),
        "max_window_layers": spec.num_layers,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": target.max_position_embeddings,
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": target.tie_word_embeddings,
        "sliding_window": spec.sliding_window,
        "use_sliding_window": spec.sliding_window is not None,
        "attention_bias": spec.attention_bias,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "dtype": "float32",
        **spec.rope,
        **spec.top_level,
    }


def layer_shapes(spec: DrafterSpec, hidden: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's tensors."""
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    out_features = {"q": queries, "k": keys, "v": keys, "o": hidden}
    projections: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}_proj.weight": (rows, queries if name == "o" else hidden)
        for name, rows in out_features.items()
    }
    biases: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}_proj.bias": (rows,) for name, rows in out_features.items() if spec.attention_bias
    }
    return (
        projections
        | biases
        | {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_norm.weight": (spec.head_dim,),
            "self_attn.k_norm.weight": (spec.head_dim,),
            "mlp.gate_proj.weight": (spec.intermediate_size, hidden),
            "mlp.up_proj.weight": (spec.intermediate_size, hidden),
            "mlp.down_proj.weight": (hidden, spec.intermediate_size),
        }
    )


def drafter_shapes(spec: DrafterSpec, hidden: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a checkpoint."""
    shared: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(spec.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    layers = {
        f"layers.{i}.{name}": shape
        for i in range(spec.num_layers)
        for name, shape in layer_shapes(spec, hidden).items()
    }
    return shared | layers


def random_weight(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Matrices keep their input's scale, norms stray from 1 and biases from 0."""
    noise: Tensor = torch.randn(shape, generator=generator)
    if len(shape) == 2:
        return noise * (1.5 / math.sqrt(shape[1]))
    return noise * 0.3 if name.endswith("bias") else 1.0 + noise * 0.2


def make_drafter(folder: Path, target: PreTrainedConfig, spec: DrafterSpec, *, seed: int = 0) -> Path:
    """Write `config.json` and `model.safetensors` (fp32); the same seed gives the same weights."""
    generator = torch.Generator().manual_seed(seed)
    shapes = drafter_shapes(spec, target.hidden_size)
    weights = {name: random_weight(name, shape, generator) for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(drafter_config(spec, target), indent=1))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
