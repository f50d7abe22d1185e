"""How far a lowered pair is from the one in fp32: numbers over logits, and over the texts that they write."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.chrf import CHRF

Logits = NDArray[np.floating]  # [S, V]


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Log-probabilities of each row."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found


def kl_divergence(reference: Logits, found: Logits) -> NDArray[np.float64]:
    """Nats of each row [S], from the reference's distribution to the found one."""
    before, after = log_softmax(reference), log_softmax(found)
    rows: NDArray[np.float64] = (np.exp(before) * (before - after)).sum(-1)
    return rows


def agreement(reference: Logits, found: Logits) -> NDArray[np.bool_]:
    """Whether each row's likeliest token is the same, [S]."""
    same: NDArray[np.bool_] = reference.argmax(-1) == found.argmax(-1)
    return same


def negative_log_likelihood(logits: Logits, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Nats of each token after the first, [S - 1], by the row before it."""
    rows = log_softmax(logits[: len(tokens) - 1])
    nats: NDArray[np.float64] = -rows[np.arange(len(rows)), list(tokens[1:])]
    return nats


def chrf(references: Sequence[str], found: Sequence[str]) -> float:
    """0 to 100; 100 where all texts are the same."""
    return float(CHRF().corpus_score(list(found), [list(references)]).score)


def rouge_l(references: Sequence[str], found: Sequence[str]) -> float:
    """Mean F-measure, 0 to 1. It sees words alone: two texts without any are the same or not."""
    scorer = RougeScorer(["rougeL"])
    scores = [
        1.0 if reference == text else scorer.score(reference, text)["rougeL"].fmeasure
        for reference, text in zip(references, found, strict=True)
    ]
    return float(np.mean(scores))
