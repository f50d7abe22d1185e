"""The drafter as it is trained: many blocks of many sequences in one pass, tensors named as z-lab names them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash_training.blocks import Blocks
from dflash_training.shape import DrafterShape


class Norm(nn.Module):
    """RMSNorm in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """[.., H] -> [.., H] in fp32."""
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each [B, 1, S, D], for positions [B, S]."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angle = positions[:, None, :, None].float() * torch.cat([frequency, frequency])
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [B, heads, S, D], in halves."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Attention(nn.Module):
    """Queries from the blocks; keys and values from the context and the blocks."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.heads, self.groups, self.width = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        hidden = shape.hidden_size
        self.q_proj = nn.Linear(hidden, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(hidden, self.groups * self.width, bias=False)
        self.v_proj = nn.Linear(hidden, self.groups * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, hidden, bias=False)
        self.q_norm = Norm(self.width, shape.rms_norm_eps)
        self.k_norm = Norm(self.width, shape.rms_norm_eps)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.width).transpose(1, 2)  # [B, heads, S, D]

    def forward(self, x: Tensor, context: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, Q, H], context [B, T, H], mask bool [B, 1, Q * heads a group, T + Q] -> [B, Q, H]."""
        rows = x.shape[1]
        both = torch.cat([context, x], 1)  # [B, T + S, H]
        cos, sin = rope
        query = rotate(self.q_norm(self._split(self.q_proj(x))), cos[:, :, -rows:], sin[:, :, -rows:])
        key = rotate(self.k_norm(self._split(self.k_proj(both))), cos, sin)
        value = self._split(self.v_proj(both))
        query = query.reshape(len(x), self.groups, -1, self.width)  # one K/V head serves a group's queries
        query, key = query.to(value.dtype), key.to(value.dtype)
        out = functional.scaled_dot_product_attention(query, key, value, mask)
        out = out.reshape(len(x), self.heads, rows, self.width)
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, Q, H] -> [B, Q, H]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A Qwen3 block whose attention also reads the context."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Attention and MLP, each added to the stream; arguments as in `Attention`."""
        x = x + self.self_attn(self.input_layernorm(x), context, mask, rope)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Drafter(nn.Module):
    """DFlash drafter without embedding and head, which are the target's.

    `tap_scale` [N] brings the taps to one size, so that `fc` learns as fast as the rest; export folds it into
    `fc`.
    """

    tap_scale: Tensor

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        taps = len(shape.target_layer_ids)
        self.shape = shape
        self.fc = nn.Linear(taps * shape.hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.register_buffer("tap_scale", torch.ones(taps))

    def forward(self, taps: Tensor, embedded: Tensor, blocks: Blocks) -> Tensor:
        """Final (normed) hidden states of all block positions, [B, A*K, H].

        Args:
            taps: [B, T, N, H], the target's, padded on the right.
            embedded: [B, A*K, H], the target's embedding of `blocks.tokens`.
            blocks: anchors, positions and mask.
        """
        context = self.hidden_norm(self.fc((taps * self.tap_scale[:, None]).flatten(2)))  # [B, T, H]
        past = torch.arange(taps.shape[1], device=taps.device).expand(taps.shape[0], -1)
        rope = rotary(torch.cat([past, blocks.positions], 1), self.shape.head_dim, self.shape.rope_theta)
        mask = blocks.mask.repeat(1, 1, self.shape.num_attention_heads // self.shape.num_key_value_heads, 1)
        x = embedded.float()
        for layer in self.layers:
            x = layer(x, context, mask, rope)
        out: Tensor = self.norm(x)
        return out
