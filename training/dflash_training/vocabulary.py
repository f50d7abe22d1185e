"""The loss vocabulary: the tokens that answers use, most frequent first."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_training.store import Example


@dataclass(frozen=True, slots=True)
class LossVocabulary:
    """`ids` [V']: token ids scored by the loss; `place` [V]: their index, -1 for all others."""

    ids: Tensor
    place: Tensor


def loss_vocabulary(examples: Sequence[Example], size: int, vocab_size: int) -> LossVocabulary:
    """The `size` tokens most used in the answers; scoring only these costs a fraction of the full head."""
    counts: Counter[int] = Counter()
    for example in examples:
        counts.update(example.response.response_ids)
    ids = torch.tensor(sorted(token for token, _ in counts.most_common(size)))
    place = torch.full((vocab_size,), -1)
    place[ids] = torch.arange(len(ids))
    return LossVocabulary(ids, place)
