"""Several denoising steps: between two launches of the drafter, its surest tokens stay and the rest is masked again."""

import numpy as np
from numpy.typing import NDArray


def steps_for(block_size: int, denoise_steps: int) -> int:
    """Launches of the drafter that a block of this size can use: each one fixes at least one token."""
    return max(1, min(denoise_steps, block_size - 1))


def keep_surest(
    tokens: NDArray[np.int64],
    block: NDArray[np.int64],
    confidence: NDArray[np.float32],
    *,
    part: float,
    mask_token_id: int,
) -> NDArray[np.int64]:
    """The drafter's next input [B,K]: of each block, the anchor and the surest `part` of its other tokens.

    `tokens` is the input that gave `block` and `confidence`; what was kept in it stays.
    """
    masked = tokens == mask_token_id
    masked[:, 0] = False
    sureness = np.where(masked, confidence, np.inf)
    rank = np.argsort(np.argsort(-sureness, axis=1, kind="stable"), axis=1)
    wanted = 1 + np.ceil(part * (tokens.shape[1] - 1))
    return np.where(rank < wanted, block, mask_token_id)
