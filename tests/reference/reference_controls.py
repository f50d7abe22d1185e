"""Controls of one row by transformers' own processors, and by plain NumPy where it has none. Nothing of the product."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRules:
    """As a request gives them."""

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_token_ids: Collection[int] = ()
    min_tokens: int = 0
    stop_token_ids: Collection[int] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    allowed: NDArray[np.bool_] | None = None  # [V], by a grammar


def edited(
    logits: NDArray[np.float32], prompt: Sequence[int], generated: Sequence[int], rules: ReferenceRules
) -> NDArray[np.float32]:
    """The logits [V] of the token that follows prompt and generated, after all rules."""
    text, scores = torch.tensor([[*prompt, *generated]]), torch.from_numpy(logits)[None].clone()
    if rules.logit_bias:
        biases: list[list[list[int] | float]] = [[[token], value] for token, value in rules.logit_bias.items()]
        scores = SequenceBiasLogitsProcessor(biases)(text, scores)
    scores = RepetitionPenaltyLogitsProcessor(rules.repetition_penalty)(text, scores)
    found: NDArray[np.float32] = scores[0].numpy().copy()
    for token in set(generated):  # OpenAI's: mu[j] - c[j] * frequency - (c[j] > 0) * presence
        found[token] -= list(generated).count(token) * rules.frequency_penalty + rules.presence_penalty
    scores = torch.from_numpy(found)[None]
    if rules.bad_token_ids:
        scores = SuppressTokensLogitsProcessor(list(rules.bad_token_ids))(text, scores)
    if rules.stop_token_ids and rules.min_tokens:
        scores = MinNewTokensLengthLogitsProcessor(len(prompt), rules.min_tokens, list(rules.stop_token_ids))(
            text, scores
        )
    found = scores[0].numpy()
    return found if rules.allowed is None else np.where(rules.allowed, found, -np.inf).astype(np.float32)
