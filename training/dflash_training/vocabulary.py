"""The tokens that answers use: the loss scores the most frequent ones, and `dflash-export --draft-vocab` reads them."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dflash_training.store import Example


@dataclass(frozen=True, slots=True)
class LossVocabulary:
    """`ids` [V']: token ids scored by the loss; `place` [V]: their index, -1 for all others."""

    ids: Tensor
    place: Tensor


TOKEN_COUNTS = "token_counts.json"  # beside a drafter's weights: {"token_ids": [...], "counts": [...]}


def token_counts(examples: Sequence[Example]) -> Counter[int]:
    """How often each token stands in the answers."""
    counts: Counter[int] = Counter()
    for example in examples:
        counts.update(example.response.response_ids)
    return counts


def write_token_counts(examples: Sequence[Example], folder: Path) -> None:
    """Write `TOKEN_COUNTS`, most frequent first; the smaller id first where two are equal."""
    rows = sorted(token_counts(examples).items(), key=lambda row: (-row[1], row[0]))
    columns = {"token_ids": [token for token, _ in rows], "counts": [count for _, count in rows]}
    (folder / TOKEN_COUNTS).write_text(json.dumps(columns, separators=(",", ":")) + "\n", encoding="utf-8")


def loss_vocabulary(examples: Sequence[Example], size: int, vocab_size: int) -> LossVocabulary:
    """The `size` tokens most used in the answers; scoring only these costs a fraction of the full head."""
    ids = torch.tensor(sorted(token for token, _ in token_counts(examples).most_common(size)))
    place = torch.full((vocab_size,), -1)
    place[ids] = torch.arange(len(ids))
    return LossVocabulary(ids, place)
