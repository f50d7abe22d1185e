"""The classical rule for drafters that draw their tokens: speculative sampling, exact in distribution.

A drafted token d, drawn with probability q(d), is kept with probability min(1, p(d) / q(d)); else the token is drawn
from the residual max(0, p - q), normalised (Leviathan et al., 2023; Chen et al., 2023). Other than the race that is
keyed by token ids, it writes other tokens with a drafter than without one.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_engines.sampling import GREEDY_BELOW
from dflash_export.programs import noise, sampling

FIRST_ID = 2**28  # noise that no drafter draws with: above all ids of a race


def verified(
    weight: Tensor,
    probabilities: Tensor,
    block: Tensor,
    count: Tensor,
    seed: Tensor,
    position: Tensor,
    temperature: Tensor,
) -> Tensor:
    """The token after each row, [B,R]: the drafted one where it is kept, else one of the residual.

    `weight` [B,R,P] are the target's, filtered; `probabilities` [B,R,V] those with which block[r+1] was drawn. The
    last row in use has no drafted token: its token is drawn from the target's distribution.
    """
    row = torch.arange(block.shape[1], device=block.device)
    has_draft = (row < count[:, None] - 1)[..., None] & (temperature >= GREEDY_BELOW)[:, None, None]
    drafted = torch.cat([block[:, 1:], block[:, :1]], 1)[..., None]  # [B, R, 1]
    target = weight / weight.sum(-1, keepdim=True)
    draft = F.pad(probabilities, (0, weight.shape[-1] - probabilities.shape[-1]))
    drawn = noise.draws(seed, position, torch.tensor([FIRST_ID - 1], device=block.device))
    chance = (drawn.float() + 0.5) / noise.PRIME
    kept = has_draft & (chance * torch.gather(draft, 2, drafted) < torch.gather(target, 2, drafted))
    residual = (target - draft).clamp(min=0)
    rest = has_draft & (residual.sum(-1, keepdim=True) > 0)
    other = sampling.race(torch.where(rest, residual, weight), seed, position, temperature, FIRST_ID)
    return torch.where(kept, drafted, other[..., None])[..., 0]
