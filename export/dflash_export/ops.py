"""The operators that programs are traced with: torch custom ops with a real eager form and an ONNX translation.

A program made of these runs in PyTorch as it stands (the oracle) and exports to standard operators of opset 24.
RMSNorm needs none of its own: `torch.nn.functional.rms_norm` is translated by the exporter.
"""

from collections.abc import Callable
from typing import Any

import torch
from onnxscript.onnx_opset import opset24 as op
from torch import Tensor

OPSET = 24
LOWEST = 2.0**-63  # the least threshold: smaller weights never win a draw
_DOUBLINGS, _MANTISSA_BITS = (32, 16, 8, 4, 2, 1), 23


@torch.library.custom_op("dflash::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float) -> Tensor:
    """Attention of q [B,Hq,S,D] over k, v [B,Hkv,M,D] where mask [B,1,S,M] is true; softcap 0 means none."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights.to(v.dtype) @ v


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float) -> Tensor:
    return q.new_empty((*q.shape[:3], v.shape[-1]))


@torch.library.custom_op("dflash::write_rows", mutates_args=())
def write_rows(cache: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    """The cache [B,H,M,D] with rows [B,H,S,D] at rows start [B], start+1, … of each slot."""
    slots = torch.arange(cache.shape[0], device=cache.device)[:, None]
    at = start[:, None] + torch.arange(rows.shape[2], device=cache.device)
    written = cache.clone()
    written[slots, :, at] = rows.transpose(1, 2)
    return written


@write_rows.register_fake
def _(cache: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    return torch.empty_like(cache)


@torch.library.custom_op("dflash::rotary", mutates_args=())
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2·P channels of x [B,H,S,D] by cos, sin [B,S,P] in half-split order; the rest stays."""
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


@rotary.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("dflash::threshold", mutates_args=())
def threshold(weight: Tensor, wanted: Tensor, by_mass: bool) -> Tensor:
    """The largest float32 in LOWEST..1, or LOWEST, that `wanted` [B,R,1] of the weights [B,R,P] in 0..1 reach.

    `by_mass` adds the weights up, else they are counted. A bisection of the float's bits, first of the exponent and
    then of the mantissa, as engines can't sort a vocabulary: every candidate is an exact float32, and so is the result.
    """
    found = torch.full_like(wanted, LOWEST)

    def raised(candidate: Tensor) -> Tensor:
        reach = (weight >= candidate).float()
        total = (weight * reach if by_mass else reach).sum(-1, keepdim=True)
        return torch.where(total >= wanted, candidate, found)

    for doublings in _DOUBLINGS:
        found = raised(found * 2.0**doublings)
    step = found
    for _ in range(_MANTISSA_BITS):
        step = step * 0.5
        found = raised(found + step)
    return found


@threshold.register_fake
def _(weight: Tensor, wanted: Tensor, by_mass: bool) -> Tensor:
    return wanted.new_empty(wanted.shape)


def _onnx_threshold(weight: Any, wanted: Any, by_mass: bool) -> Any:
    found: Any = op.Expand(_constant(LOWEST), op.Shape(wanted))
    last: Any = op.Constant(value_ints=[-1])

    def raised(found: Any, candidate: Any) -> Any:
        reach: Any = op.Cast(op.GreaterOrEqual(weight, candidate), to=1)
        total: Any = op.ReduceSum(op.Mul(weight, reach) if by_mass else reach, last, keepdims=1)
        return op.Where(op.GreaterOrEqual(total, wanted), candidate, found)

    for doublings in _DOUBLINGS:
        found = raised(found, op.Mul(found, _constant(2.0**doublings)))
    step = found
    for _ in range(_MANTISSA_BITS):
        step = op.Mul(step, _constant(0.5))
        found = raised(found, op.Add(found, step))
    return found


def _constant(value: float) -> Any:
    return op.Constant(value_float=value)


def _onnx_attention(q: Any, k: Any, v: Any, mask: Any, scale: float, softcap: float) -> Any:
    return op.Attention(q, k, v, mask, scale=scale, softcap=softcap)[0]


def _onnx_write_rows(cache: Any, rows: Any, start: Any) -> Any:
    return op.TensorScatter(cache, rows, start, axis=2, mode="linear")


def _onnx_rotary(x: Any, cos: Any, sin: Any) -> Any:
    rotated = 2 * cos.shape[-1]
    return op.RotaryEmbedding(x, cos, sin, rotary_embedding_dim=0 if rotated == x.shape[-1] else rotated)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.dflash.attention.default: _onnx_attention,
    torch.ops.dflash.write_rows.default: _onnx_write_rows,
    torch.ops.dflash.rotary.default: _onnx_rotary,
    torch.ops.dflash.threshold.default: _onnx_threshold,
}
