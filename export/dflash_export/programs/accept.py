"""`accept`: which drafted tokens are kept, and what the next block begins with. It has no weights.

The logits of every row are edited (bias, `penalties`, `masks`), the target's token after each row is chosen from them
(`sampling`), and the drafted tokens that equal it are kept. A variant has the inputs of the rules that it knows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dflash_engines.contract import ACCEPT_VARIANTS, AcceptVariant, rule_names
from dflash_export.programs import filters, masks, penalties, rejection, sampling
from dflash_export.programs.logprobs import log_probabilities

NO_TOKEN = -1  # sampled in a row whose every token is forbidden; no draft equals it
Rules = Mapping[str, Tensor]  # the inputs of a variant's rules, by name


class Accept(nn.Module):
    """One variant of acceptance."""

    def __init__(self, variant: AcceptVariant, mask_token_id: int) -> None:
        super().__init__()
        self.variant = variant
        self.mask_token_id = mask_token_id

    def forward(
        self, logits: Tensor, block: Tensor, start: Tensor, forced: Tensor, count: Tensor, limit: Tensor, *rules: Tensor
    ) -> tuple[Tensor, ...]:
        """sampled [B,R], accepted [B], next_tokens [B,R], next_start [B], next_length [B], finite [B], and reports."""
        given = dict(zip(rule_names(self.variant), rules, strict=True))
        edited = self.edited(logits, block, positions(start, block), given)
        sampled = self.sampled(edited, block, count, positions(start, block), given)
        if edited is not logits:
            sampled = torch.where(edited.amax(-1) == -torch.inf, NO_TOKEN, sampled)
        found = self.verdict(sampled, logits, block, start, forced, count, limit)
        return (*found, *(log_probabilities(logits, sampled, self.variant.logprobs) if self.variant.logprobs else ()))

    def edited(self, logits: Tensor, block: Tensor, position: Tensor, rules: Rules) -> Tensor:
        """The logits [B,R,V] as the request wants them, forbidden tokens at -infinity."""
        if self.variant.bias:
            slot = torch.arange(block.shape[0], device=block.device)[:, None]
            logits = logits + rules["bias"][slot, (position >= rules["min_end"][:, None]).long()]
        if self.variant.penalties:
            logits = penalties.penalized(logits, block, rules)
        if self.variant.grammar_mask:
            logits = logits + masks.forbidding(rules["grammar_mask"], logits.shape[-1])
        return logits

    def sampled(self, logits: Tensor, block: Tensor, count: Tensor, position: Tensor, rules: Rules) -> Tensor:
        """The target's token after each row [B,R], which stands at `position` [B,R]."""
        if not self.variant.sampling:
            return logits.argmax(-1)
        weight = sampling.weights(logits, rules["temperature"])
        if self.variant.filters:
            in_use = torch.arange(block.shape[1], device=block.device) < count[:, None]
            weight = filters.filtered(weight, rules["top_k"], rules["top_p"], in_use)
        weight = sampling.above(weight, rules["min_p"][:, None, None])
        if self.variant.rejection:
            drawn = rules["draft_probabilities"]
            return rejection.verified(weight, drawn, block, count, rules["seed"], position, rules["temperature"])
        return sampling.race(weight, rules["seed"], position, rules["temperature"])

    def verdict(
        self,
        sampled: Tensor,
        logits: Tensor,
        block: Tensor,
        start: Tensor,
        forced: Tensor,
        count: Tensor,
        limit: Tensor,
    ) -> tuple[Tensor, ...]:
        """The outputs, given the target's token after each row."""
        row = torch.arange(block.shape[1], device=block.device)
        kept = kept_rows(sampled, block, forced, count)
        bonus = torch.gather(sampled, 1, (kept - 1).clamp(min=0)[:, None]).clamp(min=0)
        first = torch.where(count[:, None] > 0, bonus, block[:, :1])
        next_tokens = torch.where(row == 0, first, self.mask_token_id)
        next_start = torch.minimum(start + kept, limit)
        # A sum of magnitudes keeps every NaN and infinity; a maximum may drop NaN on some devices.
        finite = torch.isfinite(logits.abs().sum(-1)) | (row >= count[:, None])
        return (
            sampled,
            (kept - forced).clamp(min=0),
            next_tokens,
            next_start,
            torch.where(count > 0, next_start + block.shape[1], 1),
            finite.all(1),
        )


def variants(mask_token_id: int) -> dict[AcceptVariant, Accept]:
    """The module of each of the contract's variants."""
    return {variant: Accept(variant, mask_token_id).eval() for variant in ACCEPT_VARIANTS}


def positions(start: Tensor, block: Tensor) -> Tensor:
    """Where the token after each row [B,R] of the block stands in its text."""
    return start[:, None] + 1 + torch.arange(block.shape[1], device=block.device)


def kept_rows(sampled: Tensor, block: Tensor, forced: Tensor, count: Tensor) -> Tensor:
    """How many leading rows of block [B,R] are right: forced ones, then as long as each equals the sample before it."""
    row = torch.arange(block.shape[1], device=block.device)
    before = torch.cat([block[:, :1], sampled[:, :-1]], 1)
    right = ((row < forced[:, None]) | (block == before)) & (row < count[:, None])
    return torch.where(right, block.shape[1], row).amin(1)
