"""Penalties for tokens that were there before: of each row's own history, the drafted prefix included.

The history of row r is the prompt, what was generated, and block[1..r]. Counts of the first two come as inputs;
the few tokens of the block are done again with their own counts.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

Rules = Mapping[str, Tensor]


def penalized(logits: Tensor, block: Tensor, rules: Rules) -> Tensor:
    """The logits [B,R,V] after the repetition penalty (as in transformers), then frequency and presence (OpenAI's)."""
    seen = rules["in_prompt"] | (rules["generated"] > 0)
    everywhere = _penalized(logits, seen[:, None], rules["generated"][:, None], rules)
    slots, rows = block.shape
    ids = block[:, None].expand(slots, rows, rows)  # [B, R, R] for every row all tokens of the block
    count = torch.gather(rules["generated"], 1, block)[:, None] + drafted_before(block)
    seen = torch.gather(rules["in_prompt"], 1, block)[:, None] | (count > 0)
    again = _penalized(torch.gather(logits, 2, ids), seen, count, rules)
    return torch.scatter(everywhere, 2, ids, again)  # a token that is twice in the block is written twice alike


def drafted_before(block: Tensor) -> Tensor:
    """How often block[b, i] is among block[b, 1..r], [B, r, i]."""
    row = torch.arange(block.shape[1], device=block.device)
    reached = (row <= row[:, None]) & (row > 0)  # [r, j]
    same = block[:, :, None] == block[:, None]  # [B, j, i]
    return reached.float() @ same.float()


def _penalized(logits: Tensor, seen: Tensor, count: Tensor, rules: Rules) -> Tensor:
    """Neutral penalties change no bit: they multiply by 1 and subtract 0.

    The factor depends on the logit's sign. Sums and products take engines a fraction of the time of a choice.
    """
    repetition, frequency, presence = (
        rules[f"{kind}_penalty"][:, None, None] for kind in ("repetition", "frequency", "presence")
    )
    factor = torch.where(seen, repetition, 1.0)
    scaled = logits * factor + torch.relu(logits) * (1 / factor - factor)
    return scaled - (frequency * count + presence * (count > 0))
