"""`draft`: one forward pass of the drafter over a block, with the target's embedding and head.

Each kind chooses a block's tokens in its own way; what follows from them is the same.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_engines.sampling import GREEDY_BELOW
from dflash_export.drafter import Drafter
from dflash_export.programs import sampling
from dflash_export.programs.target import pairs


class Draft(nn.Module):
    """Fills a block: masks become the drafter's most likely tokens, other tokens stay."""

    def __init__(self, drafter: Drafter, embedding: Tensor, head: Tensor, draft_vocab: Tensor | None) -> None:
        """`embedding`, `head` [V,H] are the target's; `draft_vocab` [D] limits what can be proposed."""
        super().__init__()
        self.drafter = drafter
        self.embedding = nn.Parameter(embedding, requires_grad=False)
        # A tied head stays the same tensor, so that it is stored once.
        tied = head.data_ptr() == embedding.data_ptr() and draft_vocab is None
        rows = head if draft_vocab is None else head[draft_vocab]
        self.head = self.embedding if tied else nn.Parameter(rows, requires_grad=False)
        self.vocabulary = None if draft_vocab is None else nn.Buffer(draft_vocab)

    def logits(
        self, tokens: Tensor, start: Tensor, length: Tensor, caches: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Drafter logits [B,K-1,D] of every position but the anchor's, and the written caches."""
        config = self.drafter.config
        embedded = F.embedding(tokens, self.embedding) * config.input_embedding_scale
        hidden, written = self.drafter.block(embedded, start, length, caches)
        logits = F.linear(hidden[:, 1:], self.head).float() * config.output_multiplier
        if config.final_logit_softcapping is not None:
            logits = torch.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
        return logits, written

    def forward(self, tokens: Tensor, start: Tensor, length: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """block [B,K], confidence [B,K], then the caches with rows start…start+K-1 written."""
        logits, written = self.logits(tokens, start, length, pairs(caches))
        best, drafted = logits.max(-1)  # [B, K-1]
        if self.vocabulary is not None:
            drafted = self.vocabulary[drafted]
        return self.filled(tokens, drafted, torch.exp(best - torch.logsumexp(logits, -1)), written)

    def filled(
        self, tokens: Tensor, drafted: Tensor, confidence: Tensor, written: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, ...]:
        """The outputs, given a token and its probability for each position but the anchor's."""
        anchor, rest = tokens[:, :1], tokens[:, 1:]
        block = torch.where(rest == self.drafter.config.mask_token_id, drafted, rest)
        certain = torch.ones_like(confidence[:, :1])
        return (
            torch.cat([anchor, block], 1),
            torch.cat([certain, confidence], 1),
            *(t for layer in written for t in layer),
        )


class DraftNoise(nn.Module):
    """A drafter whose masks become draws with the noise of `accept`, by seed, position and the target's token id.

    Where its distribution is like the target's, so are its draws.
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self.draft = draft
        if draft.vocabulary is not None:  # ascending: a group of the target's vocabulary is a run of it
            size = sampling.padded(draft.embedding.shape[0])
            self.group_ids = nn.Buffer(torch.arange(size, size + size // sampling.GROUP))
            borders = torch.arange(0, size + 1, sampling.GROUP)
            self.ends = nn.Buffer(torch.searchsorted(draft.vocabulary, borders))  # [G+1]

    def forward(
        self, tokens: Tensor, start: Tensor, length: Tensor, seed: Tensor, draft_temperature: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """As in `Draft`, with the draws at draft_temperature [B]."""
        logits, written = self.draft.logits(tokens, start, length, pairs(caches))
        position = start[:, None] + 1 + torch.arange(logits.shape[1], device=tokens.device)
        weight = sampling.weights(logits, draft_temperature)
        if self.draft.vocabulary is None:
            place = drafted = sampling.race(weight, seed, position, draft_temperature)  # [B, K-1]
        else:
            place = self.race(weight, seed, position, draft_temperature, self.draft.vocabulary)
            drafted = self.draft.vocabulary[place]
        chosen = torch.gather(logits, 2, place[..., None])[..., 0]
        return self.draft.filled(tokens, drafted, torch.exp(chosen - torch.logsumexp(logits, -1)), written)

    def race(self, weight: Tensor, seed: Tensor, position: Tensor, temperature: Tensor, vocabulary: Tensor) -> Tensor:
        """`sampling.race` over part of the vocabulary: the place [B,K-1] of the winner in it.

        The groups are those of the whole vocabulary, with the mass of the tokens left in them: differences of
        running sums, whose rounding may turn a draft and never an answer.
        """
        greedy = (temperature < GREEDY_BELOW)[:, None, None]
        total = F.pad(weight.cumsum(-1), (1, 0))
        mass = total[..., self.ends[1:]] - total[..., self.ends[:-1]]  # [B, K-1, G]
        group = sampling.winner(mass, greedy, seed, position, self.group_ids)  # [B, K-1]
        places = self.ends[group][..., None] + torch.arange(sampling.GROUP, device=weight.device)
        places = torch.minimum(places, self.ends[group + 1][..., None] - 1)
        members = torch.gather(weight, 2, places)
        best = sampling.winner(members, greedy, seed, position, vocabulary[places])
        return torch.gather(places, 2, best[..., None])[..., 0]
