"""The drafter that draws: with the target's own logits, it drafts what `accept` samples."""

from typing import Any, cast

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dflash_engines.contract import SAMPLING
from dflash_export.programs import accept
from dflash_export.programs.draft import Draft, DraftNoise

VOCAB_SIZE, MASK, BLOCK = 1500, 3, 8


class Knowing(nn.Module):
    """In a drafter's place: its logits are given; `filled` is the real one's."""

    def __init__(self, logits: Tensor, vocabulary: Tensor | None) -> None:
        super().__init__()
        self.given, self.vocabulary = logits, vocabulary
        self.embedding = torch.zeros(VOCAB_SIZE, 1)

    def logits(self, *_: Any) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        return self.given, []

    def filled(self, tokens: Tensor, drafted: Tensor, confidence: Tensor, _written: Any) -> tuple[Tensor, ...]:
        return torch.cat([tokens[:, :1], drafted], 1), confidence


def drawn(logits: Tensor, vocabulary: Tensor | None, start: Tensor, seed: Tensor, temperature: Tensor) -> Any:
    """Block [B,K] and confidence [B,K-1] from logits [B,K-1,D]."""
    tokens = torch.full((len(start), logits.shape[1] + 1), MASK)
    module = DraftNoise(cast("Draft", Knowing(logits, vocabulary)))
    return module(tokens, start, start + BLOCK, seed, temperature)


def sampled(logits: Tensor, start: Tensor, seed: Tensor, temperature: Tensor) -> Tensor:
    """The target's tokens [B,K-1] after rows start, start+1, …"""
    zeros, rows = torch.zeros_like(start), logits.shape[1]
    module = accept.variants(MASK)[SAMPLING]
    block = torch.zeros(len(start), rows, dtype=torch.int64)
    found: Tensor = module(
        logits, block, start, zeros + 1, zeros + rows, zeros + 9999, seed, temperature, zeros.float()
    )[0]
    return found


@given(st.integers(0, 2**32), st.sampled_from([1, 2]), st.sampled_from([0.0, 0.3, 1.0, 2.0]))
@settings(max_examples=25)
def test_with_the_targets_logits_it_drafts_what_accept_samples(number: int, slots: int, temperature: float) -> None:
    random = torch.Generator().manual_seed(number)
    logits = torch.randn(slots, BLOCK - 1, VOCAB_SIZE, generator=random) * 3
    start, seed = (torch.randint(0, 900, (slots,), generator=random) for _ in range(2))
    temperatures = torch.full((slots,), temperature)
    block, confidence = drawn(logits, None, start, seed, temperatures)
    assert torch.equal(block[:, 1:], sampled(logits, start, seed, temperatures))
    wanted = torch.gather(logits.softmax(-1), 2, block[:, 1:, None])[..., 0]
    torch.testing.assert_close(confidence, wanted)


@given(st.integers(0, 2**32), st.sampled_from([1, 40, 700]), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=25)
def test_noise_goes_by_the_targets_token_id_in_a_reduced_vocabulary(number: int, kept: int, temperature: float) -> None:
    """A target that can only say the draft vocabulary's tokens says the same; rounding turns hardly any."""
    random = torch.Generator().manual_seed(number)
    vocabulary = torch.randperm(VOCAB_SIZE, generator=random)[:kept].sort().values
    logits = torch.randn(1, 63, kept, generator=random) * 3
    whole = torch.full((1, 63, VOCAB_SIZE), -1e4)
    whole[..., vocabulary] = logits
    start, seed = torch.tensor([number % 100]), torch.tensor([number])
    temperatures = torch.tensor([temperature])
    block, _ = drawn(logits, vocabulary, start, seed, temperatures)
    assert torch.isin(block[:, 1:], vocabulary).all()
    assert (block[:, 1:] == sampled(whole, start, seed, temperatures)).float().mean() > 0.95


def test_another_seed_draws_other_tokens() -> None:
    logits = torch.zeros(1, BLOCK - 1, VOCAB_SIZE)
    first, second = (
        drawn(logits, None, torch.tensor([5]), torch.tensor([seed]), torch.tensor([1.0]))[0] for seed in (1, 2)
    )
    assert (first[:, 1:] != second[:, 1:]).all()
