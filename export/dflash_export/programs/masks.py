"""Grammar masks: one bit a token, packed into int32 words as grammar engines hand them out."""

import torch
from torch import Tensor

from dflash_engines.contract import MASK_WORD_BITS

_BYTES = MASK_WORD_BITS // 8


def forbidding(words: Tensor, vocab_size: int) -> Tensor:
    """What to add to logits, [...,V]: 0 where the token's bit in `words` [...,W] is 1, -infinity elsewhere.

    Bytes are taken apart by division, since engines have no shifts, and looked up in a table of all 256.
    """
    unsigned = torch.remainder(words.to(torch.int64), 2**MASK_WORD_BITS)
    scale = torch.tensor([256**i for i in range(_BYTES)], device=words.device)
    byte = torch.remainder(unsigned[..., None] // scale, 256)  # [..., W, 4]
    return _table().to(words.device)[byte].flatten(-3)[..., :vocab_size]


def _table() -> Tensor:
    """[256, 8] the least significant bit first."""
    bits = torch.arange(256)[:, None] // 2 ** torch.arange(8) % 2
    return torch.where(bits == 1, 0.0, -torch.inf)
