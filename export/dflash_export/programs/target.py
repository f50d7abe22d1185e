"""`target`: the Hugging Face model over row-addressed caches, with taps, KV injection and logits of chosen rows."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dflash_export.checkpoint import TargetModel
from dflash_export.drafter import Drafter
from dflash_export.seams import RowCache, fused_rope, rope_module


def pairs(flat: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """key, value, key, value, … as (key, value) pairs, one a layer."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def distances(positions: Tensor, rows: int, length: Tensor) -> Tensor:
    """How far each column lies behind each query: [B,1,S,M], negative where it may not be seen.

    An idle slot (length 1) looks from row 0, so that no row of it is left without a column even in a sliding
    window: its softmax would be NaN, and a NaN that is written to a cache spreads.
    """
    queries = torch.minimum(positions, length[:, None] - 1)
    return queries[:, None, :, None] - torch.arange(rows, device=positions.device)


class Target(nn.Module):
    """A causal LM and the drafter's context projections as one program.

    Hooks reach into the model: the decoder layers report their outputs (the taps), and the head sees only `rows`,
    so that whatever the architecture does around its head (soft-caps, scales) stays as it is.
    """

    def __init__(self, loaded: TargetModel, drafter: Drafter, *, hidden_output: bool) -> None:
        super().__init__()
        model, layers = loaded.model, loaded.layers
        self.model, self.drafter = model, drafter
        self.tap_ids = drafter.config.target_layer_ids
        self.hidden_output = hidden_output
        self.cache_argument = _cache_argument(model.forward)
        self.layer_count = len(layers)
        self.rope_module = rope_module(layers, loaded.caches[0].head_dim)
        self._taps: dict[int, Tensor] = {}
        self._rows = torch.zeros(0)
        for tap in self.tap_ids:
            layers[tap].register_forward_hook(self._tap_hook(tap))
        model.get_output_embeddings().register_forward_pre_hook(self._select_rows)

    def _tap_hook(self, tap: int) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._taps[tap] = output[0] if isinstance(output, tuple) else output

        return keep

    def _select_rows(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = inputs[0]  # [B, S, H]
        index = self._rows[..., None].expand(-1, -1, hidden.shape[-1])
        return (torch.gather(hidden, 1, index),)

    def forward(
        self, tokens: Tensor, start: Tensor, length: Tensor, rows: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """logits [B,R,V], hidden [B,S,N·H] if asked for, then the caches with rows start…start+S-1 written."""
        target, draft = pairs(caches[: 2 * self.layer_count]), pairs(caches[2 * self.layer_count :])
        cache = RowCache([k for k, _ in target], [v for _, v in target], start)
        positions = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        self._rows = rows
        with fused_rope(self.rope_module):
            out = self.model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=distances(positions, caches[0].shape[2], length),
                use_cache=True,
                **{self.cache_argument: cache},
            )
        hidden = torch.cat([self._taps[tap] for tap in self.tap_ids], -1)
        self._taps.clear()
        written = [t for layer in zip(cache.keys, cache.values, strict=True) for t in layer]
        for (key, value), (k, v) in zip(draft, self.drafter.context(hidden, positions), strict=True):
            written += [
                torch.ops.dflash.write_rows(key, k, start),
                torch.ops.dflash.write_rows(value, v, start),
            ]
        return (out.logits.float(), *((hidden.float(),) if self.hidden_output else ()), *written)


def _cache_argument(forward: Callable[..., Any]) -> str:
    """transformers renamed `past_key_values` to `cache`; the signature says which one this version has."""
    names = inspect.signature(forward).parameters
    return "cache" if "cache" in names else "past_key_values"
