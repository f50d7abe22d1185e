"""The DFlash v1 drafter as torch modules, named like its checkpoint: `fc`, `hidden_norm`, `layers`, `norm`.

`context` turns the target's tapped hidden states into keys and values (KV injection); `block` drafts over them.
Both write through `ops.write_rows`, so `target` and `draft` programs use this one module.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from dflash_engines.errors import CheckpointError
from dflash_export.drafter_config import DrafterConfig, LayerAttention
from dflash_export.seams import RmsNorm

KeyValue = tuple[Tensor, Tensor]


def _norm(size: int, eps: float) -> RmsNorm:
    return RmsNorm(torch.ones(size), eps)


class Rope(nn.Module):
    """cos and sin of the drafter's own RoPE, computed by transformers from the drafter's config."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        rope = Qwen3RotaryEmbedding(
            Qwen3Config(
                hidden_size=config.hidden_size,
                num_attention_heads=config.num_attention_heads,
                head_dim=config.head_dim,
                rope_parameters=dict(config.rope_parameters),
            )
        )
        self.inv_freq = nn.Buffer(rope.inv_freq.float())
        self.scaling = float(rope.attention_scaling)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [B,S,D/2], float32, for positions [B,S]."""
        angles = positions[..., None].float() * self.inv_freq
        return angles.cos() * self.scaling, angles.sin() * self.scaling


class Attention(nn.Module):
    """Qwen3-style attention with q/k norms; keys and values of the context come from the target's taps."""

    def __init__(self, config: DrafterConfig, view: LayerAttention) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim)  # fmt: skip
        hidden, bias = config.hidden_size, config.attention_bias
        self.view = view
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=bias)
        self.q_norm, self.k_norm = (_norm(self.head_dim, config.rms_norm_eps) for _ in range(2))

    def split(self, x: Tensor, heads: int) -> Tensor:
        """[B,S,heads·D] to [B,heads,S,D]."""
        return x.view(*x.shape[:2], heads, self.head_dim).transpose(1, 2)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> KeyValue:
        """Rotated keys and values [B,Hkv,S,D] of context or block rows x [B,S,H]."""
        k = self.k_norm(self.split(self.k_proj(x), self.kv_heads).transpose(1, 2)).transpose(1, 2)
        return torch.ops.dflash.rotary(k, cos, sin), self.split(self.v_proj(x), self.kv_heads)

    def forward(self, x: Tensor, cache: KeyValue, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend from block rows x [B,K,H] over the cache, which already holds the block's own rows."""
        q = self.q_norm(self.split(self.q_proj(x), self.heads).transpose(1, 2)).transpose(1, 2)
        q = torch.ops.dflash.rotary(q, cos, sin)
        attended = torch.ops.dflash.attention(q, *cache, mask, self.head_dim**-0.5, 0.0)
        out: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """The gated feed-forward part of a Qwen3 layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """[B,S,H] to [B,S,H]."""
        out: Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One drafter layer."""

    def __init__(self, config: DrafterConfig, view: LayerAttention) -> None:
        super().__init__()
        self.self_attn = Attention(config, view)
        self.mlp = Mlp(config)
        self.input_layernorm, self.post_attention_layernorm = (
            _norm(config.hidden_size, config.rms_norm_eps) for _ in range(2))  # fmt: skip


class Drafter(nn.Module):
    """A v1 drafter without embedding and head, which are the target's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm, self.norm = (_norm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(Layer(config, view) for view in config.layers)
        self.rope = Rope(config)

    def context(self, taps: Tensor, positions: Tensor) -> list[KeyValue]:
        """Keys and values that each layer sees of target rows: taps [B,S,N·H] at positions [B,S]."""
        rows = self.hidden_norm(self.fc(taps))
        cos, sin = self.rope(positions)
        return [layer.self_attn.keys_values(rows, cos.to(rows.dtype), sin.to(rows.dtype)) for layer in self._layers()]

    def _layers(self) -> list[Layer]:
        return [cast("Layer", layer) for layer in self.layers]

    def block(
        self, x: Tensor, start: Tensor, length: Tensor, caches: Sequence[KeyValue]
    ) -> tuple[Tensor, list[KeyValue]]:
        """Final hidden states [B,K,H] of block embeddings x, and the caches with the block's rows written."""
        positions = start[:, None] + torch.arange(x.shape[1], device=x.device)
        columns = torch.arange(caches[0][0].shape[2], device=x.device)
        cos, sin = (t.to(x.dtype) for t in self.rope(positions))
        written = []
        for layer, cache in zip(self._layers(), caches, strict=True):
            normed = layer.input_layernorm(x)
            rows = layer.self_attn.keys_values(normed, cos, sin)
            key, value = (torch.ops.dflash.write_rows(c, r, start) for c, r in zip(cache, rows, strict=True))
            mask = block_mask(layer.self_attn.view, positions, columns, length)
            x = x + layer.self_attn(normed, (key, value), mask, cos, sin)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            written.append((key, value))
        return self.norm(x), written


def block_mask(view: LayerAttention, positions: Tensor, columns: Tensor, length: Tensor) -> Tensor:
    """Which columns each block row sees: [B,1,K,M]. An idle slot (length 1) looks from row 0, so it sees one."""
    last = length[:, None, None, None] - 1
    queries = torch.minimum(positions[:, None, :, None], last)
    # ONNX Runtime wants the mask's rows spelt out; a comparison that always holds does it without an Expand.
    visible = (columns <= last) & (queries >= 0)
    if view.causal:
        visible = visible & (queries >= columns)
    return visible if view.window is None else visible & ((queries - columns).abs() < view.window)


def load(folder: Path, config: DrafterConfig) -> Drafter:
    """The drafter in `folder`, fp32. Raises CheckpointError naming a file or a tensor that is not as it should be."""
    drafter = Drafter(config)
    tensors = _tensors(folder)
    wanted = {name: value for name, value in drafter.state_dict().items() if name != "rope.inv_freq"}
    if missing := sorted(set(wanted) - set(tensors)):
        raise CheckpointError(f"{folder}: tensor {missing[0]!r} is missing ({len(missing)} in all)")
    if strange := sorted(set(tensors) - set(wanted)):
        raise CheckpointError(
            f"{folder}: tensor {strange[0]!r} is not part of a DFlash v1 drafter; it would be ignored"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise CheckpointError(
                f"{folder}: {name} is {list(tensor.shape)}, config.json asks for {list(wanted[name].shape)}"
            )
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(f"{folder}: {name} is {tensor.dtype}; quantised drafter weights are not read")
    drafter.load_state_dict({name: t.float() for name, t in tensors.items()}, strict=False)
    return drafter.eval().requires_grad_(False)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder. Raises CheckpointError when there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no *.safetensors file; save the weights as safetensors first")
    return files


def _tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors |= load_file(path)
        except SafetensorError as fault:
            raise CheckpointError(f"{path} is not a whole safetensors file: {fault}") from fault
    return tensors
