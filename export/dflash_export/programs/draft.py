"""`draft`: one forward pass of the drafter over a block, with the target's embedding and head."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_export.drafter import Drafter
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
        confidence = torch.exp(best - torch.logsumexp(logits, -1))
        anchor, rest = tokens[:, :1], tokens[:, 1:]
        block = torch.where(rest == self.drafter.config.mask_token_id, drafted, rest)
        certain = torch.ones_like(confidence[:, :1])
        return (
            torch.cat([anchor, block], 1),
            torch.cat([certain, confidence], 1),
            *(t for layer in written for t in layer),
        )
