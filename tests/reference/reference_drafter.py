"""DFlash's drafter in plain PyTorch: what every compiled drafter is compared with.

Follows arXiv 2602.06036 and the published checkpoints (z-lab format): a few Qwen3-style layers whose
attention reads keys and values made from the target's hidden states ("KV injection") beside those of the
block itself. Nothing here is fast: caches grow by `cat`, and it imports nothing of the product.

B is always 1. C = new context rows, K = block, M = all rows so far, H = hidden size, D = head size.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """Which keys a layer's queries may see."""

    causal: bool
    window: int | None

    def mask(self, num_queries: int, num_keys: int) -> Tensor:
        """True where key j is visible to query i; the queries are the last of the keys' positions."""
        query = torch.arange(num_keys - num_queries, num_keys)[:, None]
        key = torch.arange(num_keys)[None, :]
        visible = torch.ones(num_queries, num_keys, dtype=torch.bool)
        if self.causal:
            visible &= key <= query
        if self.window is not None:  # a window counts the query's own position
            visible &= (query - key).abs() < self.window
        return visible  # [K, M]


def layer_visibility(config: dict[str, Any], hf_config: Qwen3Config) -> list[Visibility]:
    """Full layers see the whole block; sliding layers are causal, unless the config decides for all."""
    causal = config.get("is_causal")
    if causal is None:
        causal = config["dflash_config"].get("causal")
    return [
        Visibility(
            causal=kind == "sliding_attention" if causal is None else causal,
            window=hf_config.sliding_window if kind == "sliding_attention" else None,
        )
        for kind in hf_config.layer_types or ()
    ]


class LayerCache:
    """Keys and values of one layer, [1, heads, rows, D], growing."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows; returns all keys and all values."""
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=2)
        self.values = values if self.values is None else torch.cat([self.values, values], dim=2)
        return self.keys, self.values

    def crop(self, length: int) -> None:
        """Forget every row from `length` on."""
        assert self.keys is not None and self.values is not None
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [1, heads, rows, D] by cos and sin [1, rows, D], in halves."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


class Attention(nn.Module):
    """Queries from the block; keys and values from the context rows and the block."""

    def __init__(self, config: Qwen3Config, visibility: Visibility) -> None:
        super().__init__()
        hidden, self.head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        queries = config.num_attention_heads * self.head_dim
        keys = (config.num_key_value_heads or config.num_attention_heads) * self.head_dim
        self.visibility = visibility
        self.q_proj = nn.Linear(hidden, queries, bias=bias)
        self.k_proj = nn.Linear(hidden, keys, bias=bias)
        self.v_proj = nn.Linear(hidden, keys, bias=bias)
        self.o_proj = nn.Linear(queries, hidden, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)  # [1, rows, heads, D]

    def forward(self, x: Tensor, context: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache) -> Tensor:
        block = x.shape[1]
        rows = torch.cat([context, x], dim=1)  # [1, C+K, H]
        q = self.q_norm(self.heads(self.q_proj(x))).transpose(1, 2)
        k = self.k_norm(self.heads(self.k_proj(rows))).transpose(1, 2)
        v = self.heads(self.v_proj(rows)).transpose(1, 2)
        q, k = rotate(q, cos[:, -block:], sin[:, -block:]), rotate(k, cos, sin)
        keys, values = cache.append(k, v)
        groups = q.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        scores = q @ keys.transpose(2, 3) * self.head_dim**-0.5  # [1, heads, K, M]
        scores = scores.masked_fill(~self.visibility.mask(block, keys.shape[2]), -torch.inf)
        mixed: Tensor = self.o_proj((scores.softmax(dim=-1) @ values).transpose(1, 2).flatten(2))
        return mixed


class MLP(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = nn.functional.silu(self.gate_proj(x))
        y: Tensor = self.down_proj(gate * self.up_proj(x))
        return y


class Layer(nn.Module):
    def __init__(self, config: Qwen3Config, visibility: Visibility) -> None:
        super().__init__()
        self.self_attn = Attention(config, visibility)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, context: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, cos, sin, cache)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class ReferenceDrafter(nn.Module):
    """A v1 DFlash drafter bound to its target, whose embedding table and head it shares.

    Parameter names are those of the checkpoint, so that loading is strict.
    """

    def __init__(self, config: dict[str, Any], target: PreTrainedModel) -> None:
        super().__init__()
        hf_config = Qwen3Config.from_dict(config)
        dflash: dict[str, Any] = {
            "input_embedding_scale": 1.0,
            "output_multiplier": 1.0,
            "final_logit_softcapping": None,
        }
        dflash |= {key: config[key] for key in (*dflash, "block_size") if key in config}
        dflash |= config["dflash_config"]  # decides over the top level
        hidden, eps = hf_config.hidden_size, hf_config.rms_norm_eps
        self.block_size: int = dflash["block_size"]
        self.mask_token_id: int = dflash["mask_token_id"]
        self.target_layer_ids: list[int] = dflash["target_layer_ids"]
        self.input_embedding_scale: float = dflash["input_embedding_scale"]
        self.output_multiplier: float = dflash["output_multiplier"]
        self.final_logit_softcapping: float | None = dflash["final_logit_softcapping"]
        self.fc = nn.Linear(len(self.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps=eps)
        self.layers = nn.ModuleList(Layer(hf_config, seen) for seen in layer_visibility(config, hf_config))
        self.norm = nn.RMSNorm(hidden, eps=eps)
        # In a tuple they aren't submodules: the target stays apart, the frequencies stay in fp32.
        self._outside = (target, Qwen3RotaryEmbedding(hf_config))

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        """Read `config.json` and `model.safetensors`; weights take the target's dtype."""
        drafter = cls(json.loads((folder / "config.json").read_text()), target)
        drafter.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
        return drafter.to(target.dtype).eval()

    def new_cache(self) -> list[LayerCache]:
        return [LayerCache() for _ in self.layers]

    def context_feature(self, hidden_states: tuple[Tensor, ...]) -> Tensor:
        """The taps: outputs of the layers `target_layer_ids`; index 0 of hidden_states is the embedding."""
        return torch.cat([hidden_states[i + 1] for i in self.target_layer_ids], dim=-1)  # [1, C, N*H]

    def forward(self, block: Tensor, taps: Tensor, start: int, cache: list[LayerCache]) -> Tensor:
        """Logits [1, K, V] of block ids [1, K] at positions start..; afterwards the block's rows are gone.

        `taps` [1, C, N*H] belong to the positions just before `start` that the cache doesn't hold yet.
        """
        x, context = self.embed(block), self.hidden_norm(self.fc(taps))
        positions = torch.arange(start - taps.shape[1], start + block.shape[1])[None]
        cos, sin = self._outside[1](x, positions)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, context, cos, sin, layer_cache)
            layer_cache.crop(start)
        return self.logits(self.norm(x))

    def embed(self, block: Tensor) -> Tensor:
        """Rows of the target's raw table; its embedding module may scale, as gemma's does."""
        table = cast(Tensor, self._outside[0].get_input_embeddings().weight)
        return nn.functional.embedding(block, table) * self.input_embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        head = self._outside[0].get_output_embeddings()
        logits: Tensor = head(hidden) * self.output_multiplier
        if not self.final_logit_softcapping:
            return logits
        return torch.tanh(logits / self.final_logit_softcapping) * self.final_logit_softcapping
