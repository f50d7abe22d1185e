"""A target and its DFlash drafter of any size, with random weights made on the device: for their time, not their words.

Both have Qwen3's layers, with the products that read one input merged. Caches are written in place, and attention
reads grouped keys and values as they lie. Their acceptance is that of chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_engines.contract import CacheShape, Dtype, Geometry

EPS, ROPE_BASE = 1e-6, 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a pair. The drafter has the target's widths."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    draft_layers: int
    taps: int
    block: int
    max_len: int  # with the guard rows a multiple of 8, as fused attention wants its mask

    @property
    def geometry(self) -> Geometry:
        """As the contract has it, caches in bfloat16."""
        cache = CacheShape(kv_heads=self.kv_heads, head_dim=self.head_dim)
        return Geometry(
            vocab_size=self.vocab, hidden_size=self.hidden, taps=self.taps, target_caches=(cache,) * self.layers,
            draft_caches=(cache,) * self.draft_layers, cache_dtype=Dtype.BFLOAT16,
        )  # fmt: skip


QWEN3_8B = Size(hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, intermediate=12288, vocab=151936,
                draft_layers=5, taps=5, block=16, max_len=992)  # fmt: skip
SMALL = Size(hidden=64, layers=3, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=320, draft_layers=2, taps=2,
             block=4, max_len=56)  # fmt: skip


def weight(rows: int, columns: int, device: str) -> nn.Parameter:
    """A random matrix that keeps magnitudes about as they are."""
    values = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
    return nn.Parameter(values.normal_(0, columns**-0.5), requires_grad=False)


def norm(size: int, device: str) -> nn.Parameter:
    """The weights of an RMSNorm."""
    return nn.Parameter(torch.ones(size, dtype=torch.bfloat16, device=device), requires_grad=False)


def normed(x: Tensor, scale: Tensor) -> Tensor:
    """RMSNorm over the last axis."""
    return F.rms_norm(x, scale.shape, scale, EPS)


def rotation(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin [B,1,S,D/2] in bfloat16."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    angles = positions[:, None, :, None].float() * ROPE_BASE**-exponents
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split RoPE of x [B,H,S,D]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def write_rows(cache: Tensor, rows: Tensor, positions: Tensor) -> None:
    """Write rows [B,H,S,D] at positions [B,S] of the cache [B,H,M,D], in place."""
    slots = torch.arange(cache.shape[0], device=cache.device)[:, None]
    cache.transpose(1, 2)[slots, positions] = rows.transpose(1, 2)


class Layer(nn.Module):
    """One decoder layer over caches that are given."""

    def __init__(self, size: Size, device: str) -> None:
        super().__init__()
        self.size = size
        attended, stored = size.heads * size.head_dim, size.kv_heads * size.head_dim
        self.qkv = weight(attended + 2 * stored, size.hidden, device)
        self.out = weight(size.hidden, attended, device)
        self.gate_up = weight(2 * size.intermediate, size.hidden, device)
        self.down = weight(size.hidden, size.intermediate, device)
        self.input_norm, self.post_norm = norm(size.hidden, device), norm(size.hidden, device)
        self.q_norm, self.k_norm = norm(size.head_dim, device), norm(size.head_dim, device)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """x [B,S,H] to [B,S,H]; writes its rows, then attends where mask [B,1,G·S,M] is true."""
        size, (batch, rows, _) = self.size, x.shape
        split = F.linear(normed(x, self.input_norm), self.qkv).view(batch, rows, -1, size.head_dim).transpose(1, 2)
        q, k, v = split.split([size.heads, size.kv_heads, size.kv_heads], 1)
        turn = rotation(positions, size.head_dim)
        write_rows(key, rotated(normed(k, self.k_norm), *turn), positions)
        write_rows(value, v, positions)
        q = rotated(normed(q, self.q_norm), *turn).reshape(batch, size.kv_heads, -1, size.head_dim)
        attended = F.scaled_dot_product_attention(q, key, value, attn_mask=mask)  # [B, Hkv, G·S, D]
        attended = attended.view(batch, size.heads, rows, size.head_dim).transpose(1, 2).reshape(batch, rows, -1)
        x = x + F.linear(attended, self.out)
        gate, up = F.linear(normed(x, self.post_norm), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


def grouped(mask: Tensor, size: Size) -> Tensor:
    """mask [B,1,S,M] for the queries of a group, which lie behind one another: [B,1,G·S,M]."""
    group = size.heads // size.kv_heads
    return mask.expand(-1, group, -1, -1).reshape(mask.shape[0], 1, -1, mask.shape[-1])


class SyntheticTarget(nn.Module):
    """The contract's `target`."""

    def __init__(self, size: Size, device: str) -> None:
        super().__init__()
        self.size = size
        self.embedding, self.head = weight(size.vocab, size.hidden, device), weight(size.vocab, size.hidden, device)
        self.layers = nn.ModuleList(Layer(size, device) for _ in range(size.layers))
        self.norm, self.hidden_norm = norm(size.hidden, device), norm(size.hidden, device)
        self.taps = [round((i + 1) * size.layers / (size.taps + 1)) for i in range(size.taps)]
        self.fc = weight(size.hidden, size.taps * size.hidden, device)
        self.context = weight(2 * size.draft_layers * size.kv_heads * size.head_dim, size.hidden, device)

    def forward(self, tokens: Tensor, start: Tensor, length: Tensor, rows: Tensor, *caches: Tensor) -> Sequence[Tensor]:
        """logits [B,R,V], and the caches, which were written in place."""
        size = self.size
        positions = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        columns = torch.arange(caches[0].shape[2], device=tokens.device)
        queries = torch.minimum(positions, length[:, None] - 1)
        mask = grouped(columns <= queries[:, None, :, None], size)
        x, taps = F.embedding(tokens, self.embedding), []
        for index, layer in enumerate(self.layers):
            x = layer(x, caches[2 * index], caches[2 * index + 1], positions, mask)
            if index in self.taps:
                taps.append(x)
        self._write_context(torch.cat(taps, -1), positions, caches[2 * size.layers :])
        chosen = torch.gather(x, 1, rows[..., None].expand(-1, -1, size.hidden))
        return (F.linear(normed(chosen, self.norm), self.head).float(), *caches)

    def _write_context(self, taps: Tensor, positions: Tensor, caches: Sequence[Tensor]) -> None:
        """KV injection: the drafter's keys and values of these rows."""
        size = self.size
        rows = F.linear(normed(F.linear(taps, self.fc), self.hidden_norm), self.context)
        split = rows.view(*rows.shape[:2], -1, size.head_dim).transpose(1, 2).split(size.kv_heads, 1)
        turn = rotation(positions, size.head_dim)
        for index, (cache, part) in enumerate(zip(caches, split, strict=True)):
            write_rows(cache, rotated(part, *turn) if index % 2 == 0 else part, positions)


class SyntheticDraft(nn.Module):
    """The contract's `draft`, with the target's embedding and head."""

    def __init__(self, target: SyntheticTarget, mask_token_id: int) -> None:
        super().__init__()
        self.size, self.mask_token_id = target.size, mask_token_id
        self.embedding, self.head = target.embedding, target.head
        device = str(target.head.device)
        self.layers = nn.ModuleList(Layer(target.size, device) for _ in range(target.size.draft_layers))
        self.norm = norm(target.size.hidden, device)

    def forward(self, tokens: Tensor, start: Tensor, length: Tensor, *caches: Tensor) -> Sequence[Tensor]:
        """block [B,K], confidence [B,K], and the caches, which were written in place."""
        positions = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        columns = torch.arange(caches[0].shape[2], device=tokens.device)
        seen = (columns < length[:, None])[:, None, None].expand(-1, 1, tokens.shape[1], -1)
        mask, x = grouped(seen, self.size), F.embedding(tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            x = layer(x, caches[2 * index], caches[2 * index + 1], positions, mask)
        best, drafted = F.linear(normed(x[:, 1:], self.norm), self.head).float().max(-1)
        rest = tokens[:, 1:]
        block = torch.cat([tokens[:, :1], torch.where(rest == self.mask_token_id, drafted, rest)], 1)
        return (block, F.pad(best, (1, 0)), *caches)
