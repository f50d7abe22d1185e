"""The authors' draft, verify, accept loop around a `transformers` target, and plain greedy decoding.

One difference on purpose: the authors shorten the last block to the tokens still wanted; here every block
is whole, as in a program of fixed shapes, and the tokens past the end are cut off afterwards.
"""

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from tests.reference.reference_drafter import ReferenceDrafter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """What a run produced; one entry a verifying pass in all but `token_ids`."""

    token_ids: list[int]  # new tokens, a stop token included
    drafts: list[list[int]]  # K-1 ids each
    draft_logits: list[Tensor]  # [K-1, V] each
    acceptance_lengths: list[int]  # accepted + 1, before the end is cut


class GrowingTarget:
    """A `transformers` causal LM and its cache, fed a run of tokens at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.cache = DynamicCache()  # keeps every row of sliding layers too; their mask hides the old ones
        arguments = inspect.signature(model.forward).parameters
        self.cache_argument = "cache" if "cache" in arguments else "past_key_values"  # renamed in 5.2x

    def forward(self, token_ids: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits [S, V] and hidden states (layers + 1) x [1, S, H] of the next S tokens."""
        ids = torch.tensor([token_ids])
        cache = {self.cache_argument: self.cache}
        output = self.model(ids, **cache, use_cache=True, output_hidden_states=True)
        return output.logits[0], output.hidden_states

    def crop(self, length: int) -> None:
        """Forget every row from `length` on."""
        if rejected := self.cache.get_seq_length() - length:
            self.cache.crop(-rejected)


def accepted_count(drafted: Sequence[int], posterior: Sequence[int]) -> int:
    """Length of the longest prefix of `drafted` that the target would have written itself."""
    matches = [d == p for d, p in zip(drafted, posterior, strict=False)]
    return [*matches, False].index(False)


def cut(token_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int]) -> list[int]:
    """At most `max_new_tokens`, and nothing behind the first stop token."""
    kept = list(token_ids[:max_new_tokens])
    stops = [i for i, token in enumerate(kept) if token in stop_ids]
    return kept[: stops[0] + 1] if stops else kept


@torch.inference_mode()
def reference_loop(
    target: PreTrainedModel,
    drafter: ReferenceDrafter,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    block_size: int,
    stop_ids: Collection[int] = (),
) -> ReferenceResult:
    """Greedy speculative decoding of one prompt; a block is the anchor and block_size - 1 masks."""
    verifier, draft_cache = GrowingTarget(target), drafter.new_cache()
    drafts: list[list[int]] = []
    draft_logits: list[Tensor] = []
    acceptance_lengths: list[int] = []

    logits, hidden_states = verifier.forward(prompt_ids)
    tokens = [int(logits[-1].argmax())]
    taps, start = drafter.context_feature(hidden_states), len(prompt_ids)
    while len(tokens) < max_new_tokens and not set(tokens) & set(stop_ids):
        masked = [tokens[-1]] + [drafter.mask_token_id] * (block_size - 1)
        proposal = drafter(torch.tensor([masked]), taps, start, draft_cache)[0, 1:]
        drafted = proposal.argmax(dim=-1).tolist()
        logits, hidden_states = verifier.forward([tokens[-1], *drafted])
        posterior = logits.argmax(dim=-1).tolist()
        accepted = accepted_count(drafted, posterior)
        tokens += [*drafted[:accepted], posterior[accepted]]
        start += accepted + 1
        verifier.crop(start)
        taps = drafter.context_feature(hidden_states)[:, : accepted + 1]
        drafts.append(drafted)
        draft_logits.append(proposal)
        acceptance_lengths.append(accepted + 1)
    return ReferenceResult(
        token_ids=cut(tokens, max_new_tokens, stop_ids),
        drafts=drafts,
        draft_logits=draft_logits,
        acceptance_lengths=acceptance_lengths,
    )


@torch.inference_mode()
def plain_greedy(
    target: PreTrainedModel, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int] = ()
) -> list[int]:
    """The target alone, one token a pass; a stop token is the last one returned."""
    model = GrowingTarget(target)
    tokens: list[int] = []
    fed = prompt_ids
    while len(tokens) < max_new_tokens and not set(tokens) & set(stop_ids):
        tokens.append(int(model.forward(fed)[0][-1].argmax()))
        fed = tokens[-1:]
    return tokens
