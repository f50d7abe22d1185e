"""A pair whose every token can be worked out by hand, yet depends on every cache row: arithmetic a GPU does exactly.

The target's token after position p is script(p) or, when the checksum of tokens 0..p is a multiple of 4, another one
made from the checksum. The drafter's first guess fails when the checksum is a multiple of 7.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dflash_engines.contract import CacheShape, Geometry

VOCAB, MASK_TOKEN_ID = 260, 2
SCRIPT = (40, 75, 200, MASK_TOKEN_ID, 12, 130, 7, 99, 40, 61, 180)
_CACHE = (CacheShape(kv_heads=1, head_dim=1),)
GEOMETRY = Geometry(vocab_size=VOCAB, hidden_size=8, taps=1, target_caches=_CACHE, draft_caches=_CACHE)


def plain_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """The next `count` tokens of the target alone, one at a time, in Python."""
    tokens = list(prompt)
    for _ in range(count):
        total = sum((token + 1) * (p * 7 % 5 + 1) for p, token in enumerate(tokens))
        p = len(tokens) - 1
        tokens.append(SCRIPT[p % len(SCRIPT)] if total % 4 else (total * 3 + p) % (VOCAB - 1))
    return tokens[len(prompt) :]


class _Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.script = nn.Buffer(torch.tensor(SCRIPT))

    def token(self, total: Tensor, position: Tensor) -> Tensor:
        """The target's token after `position`, given the checksum up to there."""
        other = (total * 3 + position) % (VOCAB - 1)
        return torch.where(total % 4 > 0, self.script[position % len(SCRIPT)], other)


def _checksum(cache: Tensor, last: Tensor, length: Tensor) -> Tensor:
    """Of the cache's rows [B,1,M,1] up to `last` [B,S] and below `length` [B]: [B,S]."""
    columns = torch.arange(cache.shape[2], device=cache.device)
    seen = (columns <= last[..., None]) & (columns < length[:, None, None])
    terms = cache[:, 0, :, 0] * (columns * 7 % 5 + 1)
    return torch.where(seen, terms[:, None], 0).sum(-1).long()


def _written(cache: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    written = cache.clone()
    slots = torch.arange(cache.shape[0], device=cache.device)[:, None]
    written[slots, 0, positions, 0] = values.float()
    return written


def _positions(tokens: Tensor, start: Tensor) -> Tensor:
    return start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)


class ScriptedTarget(_Scripted):
    """The contract's `target`."""

    def forward(self, tokens: Tensor, start: Tensor, length: Tensor, rows: Tensor, *caches: Tensor) -> Sequence[Tensor]:
        """Logits that are 1 at the token, and the caches with these rows."""
        positions = _positions(tokens, start)
        written = [_written(cache, tokens + 1, positions) for cache in caches]
        after = self.token(_checksum(written[0], positions, length), positions)
        chosen = torch.gather(after, 1, rows)
        logits = torch.zeros(*chosen.shape, VOCAB, device=tokens.device).scatter_(-1, chosen[..., None], 1.0)
        return (logits, *written)


class ScriptedDraft(_Scripted):
    """The contract's `draft`. It writes junk over its own rows, as a real drafter's are of no use to anybody else."""

    def forward(self, tokens: Tensor, start: Tensor, length: Tensor, *caches: Tensor) -> Sequence[Tensor]:
        """The block, its confidence, and the caches with these rows."""
        positions, first = _positions(tokens, start), start[:, None]
        before = _checksum(caches[0], first - 1, length)
        total = before + (tokens[:, :1] + 1) * (first * 7 % 5 + 1)
        guess = (self.token(total, first) + (total % 7 == 0).long()) % (VOCAB - 1)
        rest = self.script[(positions - 1) % len(SCRIPT)]
        block = torch.cat([tokens[:, :1], guess, rest[:, 2:]], 1)[:, : tokens.shape[1]]
        written = [_written(cache, tokens - 1000, positions) for cache in caches]
        return (block, torch.ones_like(block, dtype=torch.float32), *written)
