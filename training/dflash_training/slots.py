"""Rows of K/V for many answers at once: one slot an answer, refilled when the answer ends.

The Hugging Face model itself runs; only its cache and its attention are ours. The cache's two sides are
`PrefillSide` (prompts of several slots, padded on the right) and `DecodeSide` (one row of every slot).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PretrainedConfig

ATTENTION_NAME = "slot_rows"  # a name with "flash" in it would be taken for a flash kernel
LIVE_STEP = 16


def _grouped_attention(
    module: torch.nn.Module,
    query: Tensor,  # [B, Hq, S, D]
    key: Tensor,  # [B, Hkv, M, D]
    value: Tensor,
    attention_mask: Tensor,  # bool, [B, 1, S, M]
    scaling: float | None = None,
    **unused: object,
) -> tuple[Tensor, None]:
    """Attention that reads each K/V head once: the query heads that share it become its rows."""
    batch, heads, rows, width = query.shape
    groups = heads // key.shape[1]
    folded = query.to(key.dtype).reshape(batch, key.shape[1], groups * rows, width)
    mask = attention_mask if rows == 1 else attention_mask.repeat(1, 1, groups, 1)
    out = functional.scaled_dot_product_attention(folded, key, value, mask, scale=scaling)
    return out.reshape(batch, heads, rows, width).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, _grouped_attention)


class SlotArena:
    """K and V of every layer, [slots, Hkv, rows, D], allocated once."""

    def __init__(
        self, config: PretrainedConfig, slots: int, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, config.num_key_value_heads, rows, width)
        self.rows = rows
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]


class PrefillSide:
    """Writes the rows of new prompts into their slots; a prompt attends to itself alone."""

    def __init__(self, arena: SlotArena, slots: Sequence[int]) -> None:
        self.arena = arena
        self.slots = torch.tensor(slots, device=arena.keys[0].device)

    def get_seq_length(self, *unused: object) -> int:
        """Asked by transformers; positions and mask are given, so nothing hangs on it."""
        return 0

    def update(self, key: Tensor, value: Tensor, layer: int, **unused: object) -> tuple[Tensor, Tensor]:
        """Write K and V [n, Hkv, S, D] into the slots; attention reads them as they came."""
        key, value = key.to(self.arena.keys[layer].dtype), value.to(self.arena.values[layer].dtype)
        self.arena.keys[layer][self.slots, :, : key.shape[2]] = key
        self.arena.values[layer][self.slots, :, : key.shape[2]] = value
        return key, value


class PassingSide:
    """Keeps nothing: a whole text is read in one pass."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def get_seq_length(self, *unused: object) -> int:
        """Asked by transformers; positions and mask are given, so nothing hangs on it."""
        return 0

    def update(self, key: Tensor, value: Tensor, layer: int, **unused: object) -> tuple[Tensor, Tensor]:
        """K and V as they came."""
        return key.to(self.dtype), value.to(self.dtype)


class DecodeSide:
    """Writes one row a slot at its own position and gives back the live rows of all slots."""

    def __init__(self, arena: SlotArena, positions: Tensor, live: int) -> None:
        self.arena, self.positions = arena, positions  # positions: [slots]
        self.live = min(-(-live // LIVE_STEP) * LIVE_STEP, arena.rows)
        self.slots = torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, *unused: object) -> int:
        """Asked by transformers; positions and mask are given, so nothing hangs on it."""
        return 0

    def mask(self) -> Tensor:
        """Rows each slot may read, its own new row included: bool [slots, 1, 1, live]."""
        columns = torch.arange(self.live, device=self.positions.device)
        return (columns <= self.positions[:, None])[:, None, None]

    def update(self, key: Tensor, value: Tensor, layer: int, **unused: object) -> tuple[Tensor, Tensor]:
        """Write K and V [slots, Hkv, 1, D]; gives back the live rows."""
        keys, values = self.arena.keys[layer], self.arena.values[layer]
        keys[self.slots, :, self.positions] = key[:, :, 0].to(keys.dtype)
        values[self.slots, :, self.positions] = value[:, :, 0].to(values.dtype)
        return keys[:, :, : self.live], values[:, :, : self.live]
