"""Where a Hugging Face model is opened for tracing, so that no architecture is written a second time.

Two official seams: an attention function that emits one Attention, and a cache whose `update` emits TensorScatter.
Two substitutions, each only where it gives the very numbers of the original: RMSNorm and half-split RoPE.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

from dflash_engines.errors import CheckpointError
from dflash_export import ops as ops  # registers torch.ops.dflash

IMPLEMENTATION = "row_cache"  # transformers takes any name with "flash" in it for a flash-attention kernel
_REFUSED = {"s_aux": "attention sinks", "position_bias": "an additive position bias"}


def visible(distance: Tensor, window: int | None) -> Tensor:
    """The boolean mask of a causal layer, from each column's distance behind the query (negative: not there)."""
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def attention(  # transformers calls attention functions with these names, and with more that do not matter here
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """An attention function for `AttentionInterface`; `attention_mask` carries distances [B,1,S,M]."""
    for name, what in _REFUSED.items():
        if rest.get(name) is not None:
            raise CheckpointError(f"{type(module).__name__} uses {what} ({name}), which is not compiled yet")
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    mask = visible(attention_mask, sliding_window)
    attended = torch.ops.dflash.attention(query, key, value, mask, scale, float(softcap or 0.0))
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, attention)


class RowCache:
    """The cache object that the traced model is given: writes rows at `start`, returns the whole buffer."""

    is_compileable = False

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor], start: Tensor) -> None:
        self.keys, self.values, self.start = list(keys), list(values), start

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are given to the model, so it never needs this."""
        return 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write this layer's new rows. transformers passes further arguments that concern its own caches."""
        self.keys[layer_idx] = torch.ops.dflash.write_rows(self.keys[layer_idx], key_states, self.start)
        self.values[layer_idx] = torch.ops.dflash.write_rows(self.values[layer_idx], value_states, self.start)
        return self.keys[layer_idx], self.values[layer_idx]


class RmsNorm(nn.Module):
    """RMSNorm that the exporter turns into one operator; fp32 inside whatever the input's type."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def fuse_norms(model: nn.Module) -> int:
    """Replace each RMSNorm that equals ours, with its weight w or 1 + w. Returns how many were replaced."""
    replaced = 0
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            norm = _same_norm(child) if type(child).__name__.endswith("RMSNorm") else None
            if norm is not None:
                setattr(parent, name, norm)
                replaced += 1
    return replaced


def _same_norm(norm: nn.Module) -> RmsNorm | None:
    weight = norm.weight
    eps = next((getattr(norm, name) for name in ("variance_epsilon", "eps") if hasattr(norm, name)), None)
    if not isinstance(weight, Tensor) or eps is None:
        return None
    generator = torch.Generator().manual_seed(0)
    probe = (3 * torch.randn(4, weight.shape[-1], generator=generator)).to(weight.dtype)
    wanted = norm(probe)
    candidates = (RmsNorm(w, float(cast("float", eps))) for w in (weight, 1.0 + weight))
    return next((c for c in candidates if torch.allclose(c(probe), wanted, rtol=1e-5, atol=1e-6)), None)


def _rotate_pair(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb` of the half-split families, as two RotaryEmbedding operators."""
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    return torch.ops.dflash.rotary(q, cos, sin), torch.ops.dflash.rotary(k, cos, sin)


def rope_module(layers: nn.ModuleList, head_dim: int) -> ModuleType | None:
    """The layers' modelling module, if our operator gives the same numbers as its `apply_rotary_pos_emb`."""
    attention_class = next((type(m) for m in layers.modules() if type(m).__name__.endswith("Attention")), None)
    module = sys.modules[attention_class.__module__] if attention_class is not None else None
    original = vars(module).get("apply_rotary_pos_emb") if module is not None else None
    return module if original is not None and _same_rotation(original, head_dim) else None


@contextlib.contextmanager
def fused_rope(module: ModuleType | None) -> Iterator[None]:
    """Rotate with our operator inside this block; the module is transformers', and others use it too."""
    if module is None:
        yield
        return
    original = vars(module)["apply_rotary_pos_emb"]
    vars(module)["apply_rotary_pos_emb"] = _rotate_pair
    try:
        yield
    finally:
        vars(module)["apply_rotary_pos_emb"] = original


def _same_rotation(rotate: Callable[..., Any], head_dim: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 3, head_dim, generator=generator)
    angles = torch.randn(1, 3, head_dim // 2, generator=generator).repeat(1, 1, 2)
    ours, theirs = (f(q, k, angles.cos(), angles.sin()) for f in (_rotate_pair, rotate))
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))
