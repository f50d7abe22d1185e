"""The DFlash authors' way to run a drafter: eager PyTorch around transformers, with our drafter's weights.

The target keeps a growing cache that is cropped after a rejection; its hidden states are carried to the next draft.
Here as there the drafter's own context rows are kept between blocks, and a block's rows are not.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

import dflash_export.ops  # noqa: F401 - registers the operators that the drafter's module calls
from dflash_engines.bundle import Bundle
from dflash_export.checkpoint import locate
from dflash_export.drafter import Drafter, KeyValue
from dflash_export.drafter import load as load_drafter
from dflash_export.drafter_config import DrafterConfig
from dflash_export.peers.transformers_generate import load_model


def load(bundle: Bundle, path: str | None, threads: int) -> Callable[[Sequence[int], int], list[int]]:
    """The peer `authors-loop`. Raises CheckpointError without both checkpoints."""
    folder = locate(bundle.manifest.drafter.id).folder
    drafter = load_drafter(folder, DrafterConfig.from_folder(folder))
    model = load_model(bundle, path, threads)
    return AuthorsLoop(model, drafter, frozenset(bundle.manifest.stop_token_ids)).generate


class AuthorsLoop:
    """A target and a drafter in eager PyTorch."""

    def __init__(self, model: PreTrainedModel, drafter: Drafter, stop_token_ids: frozenset[int]) -> None:
        self._model, self._drafter, self._stops = model, drafter, stop_token_ids
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    @torch.no_grad()
    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """The greedy answer, up to a stop."""
        return self._answer(list(prompt), max_new_tokens)

    def _answer(self, prompt: list[int], max_new_tokens: int) -> list[int]:
        size, cache = self._drafter.config.block_size, DynamicCache()
        caches = self._draft_caches(len(prompt) + max_new_tokens + 2 * size)
        choice, taps = self._target(prompt, cache)
        tokens, start = choice[-1:], len(prompt)
        self._inject(taps, 0, caches)
        while len(tokens) < max_new_tokens and not self._stops & set(tokens):
            drafted = self._draft(tokens[-1], start, caches)
            choice, taps = self._target([tokens[-1], *drafted], cache)
            accepted = next((i for i, token in enumerate(drafted) if token != choice[i]), len(drafted))
            tokens += choice[: accepted + 1]
            self._inject(taps[:, : accepted + 1], start, caches)
            start += accepted + 1
            if accepted < len(drafted):
                cache.crop(accepted - len(drafted))
        end = next((i + 1 for i, token in enumerate(tokens) if token in self._stops), len(tokens))
        return tokens[: min(end, max_new_tokens)]

    def _target(self, tokens: list[int], cache: DynamicCache) -> tuple[list[int], Tensor]:
        """The target's token after each of these, and the taps [1,S,N·H]."""
        out = self._model(torch.tensor([tokens]), use_cache=True, output_hidden_states=True,
                          **{self._cache_argument: cache})  # fmt: skip
        taps = torch.cat([out.hidden_states[i + 1] for i in self._drafter.config.target_layer_ids], -1)
        return out.logits[0].argmax(-1).tolist(), taps

    def _draft_caches(self, rows: int) -> list[KeyValue]:
        config = self._drafter.config
        shape = (1, config.num_key_value_heads, rows, config.head_dim)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in config.layers]

    def _inject(self, taps: Tensor, start: int, caches: list[KeyValue]) -> None:
        """Write the context rows start…; the block that lay there is gone."""
        positions = torch.arange(start, start + taps.shape[1])[None]
        for cache, rows in zip(caches, self._drafter.context(taps, positions), strict=True):
            for kept, new in zip(cache, rows, strict=True):
                kept[:, :, start : start + new.shape[2]] = new

    def _draft(self, anchor: int, start: int, caches: list[KeyValue]) -> list[int]:
        config = self._drafter.config
        block = torch.tensor([[anchor] + [config.mask_token_id] * (config.block_size - 1)])
        table = cast("Tensor", self._model.get_input_embeddings().weight)
        head = cast("Tensor", self._model.get_output_embeddings().weight)
        seen = [(k[:, :, : start + config.block_size], v[:, :, : start + config.block_size]) for k, v in caches]
        embedded = F.embedding(block, table) * config.input_embedding_scale
        length = torch.tensor([start + config.block_size])
        hidden, _ = self._drafter.block(embedded, torch.tensor([start]), length, seen)
        # Scale and soft-cap keep the order of the logits.
        drafted: list[int] = F.linear(hidden[0, 1:], head).argmax(-1).tolist()
        return drafted
