"""Hugging Face checkpoints: found by folder or hub id, refused by name where they can't be compiled, then loaded."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dflash_engines.contract import CacheShape
from dflash_engines.errors import CheckpointError
from dflash_engines.manifest import ModelSource
from dflash_export.drafter import weight_files

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_ATTENTION_KINDS = {"full_attention", "sliding_attention"}
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint folder, and what to call it in a manifest."""

    folder: Path
    source: ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetModel:
    """A loaded target, and the parts of it that programs are built from."""

    model: PreTrainedModel
    layers: nn.ModuleList
    caches: tuple[CacheShape, ...]
    stop_token_ids: tuple[int, ...]

    @property
    def embedding(self) -> torch.Tensor:
        """The raw embedding table [V,H], without the scale that some families apply."""
        return cast("torch.Tensor", self.model.get_input_embeddings().weight)

    @property
    def head(self) -> torch.Tensor:
        """The head's weight [V,H]; the embedding itself where they are tied."""
        return cast("torch.Tensor", self.model.get_output_embeddings().weight)


def locate(name: str) -> Checkpoint:
    """The checkpoint called `name`: a folder, or else a Hugging Face id. Raises CheckpointError."""
    local = Path(name).expanduser()
    if local.is_dir():
        folder = local.resolve()
        return Checkpoint(folder=folder, source=_source(str(folder), "local", folder))
    try:
        folder = Path(snapshot_download(name, allow_patterns=_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as fault:
        raise CheckpointError(
            f"{name!r} is no folder here, and the Hugging Face hub did not give it: {fault}"
        ) from fault
    return Checkpoint(folder=folder, source=_source(name, folder.name, folder))


def _source(name: str, revision: str, folder: Path) -> ModelSource:
    return ModelSource(id=name, revision=revision, sha256=weights_sha256(folder))


def weights_sha256(folder: Path) -> str:
    """One hash over a checkpoint's weight files, in name order."""
    digest = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def load_target(folder: Path) -> TargetModel:
    """The target in `folder`, fp32, with transformers' own eager attention. Raises CheckpointError."""
    config = read_config(folder)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    except (OSError, ValueError, KeyError, SafetensorError) as fault:
        raise CheckpointError(f"{folder}: transformers cannot load this target: {fault}") from fault
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise CheckpointError(f"{folder}: weight {missing[0]!r} is missing ({len(missing)} in all); it would be random")
    model = model.eval().requires_grad_(False)
    decoder = model.get_decoder()
    return TargetModel(
        model=model,
        layers=decoder.layers,
        caches=_cache_shapes(config.get_text_config(), len(decoder.layers)),
        stop_token_ids=stop_token_ids(folder, config),
    )


def read_config(folder: Path) -> PreTrainedConfig:
    """config.json of a target that this version compiles. Raises CheckpointError naming what it doesn't."""
    try:
        config = cast("PreTrainedConfig", AutoConfig.from_pretrained(folder))
    except (OSError, ValueError, KeyError) as fault:
        raise CheckpointError(f"{folder}: transformers cannot read its config.json: {fault}") from fault
    text = config.get_text_config().to_dict()
    if strange := sorted(set(text.get("layer_types") or ()) - _ATTENTION_KINDS):
        raise CheckpointError(
            f"{folder}: layer type {strange[0]!r} is not compiled; its state can't be rolled back by position"
        )
    if text.get("kv_lora_rank"):
        raise CheckpointError(f"{folder}: multi-head latent attention (kv_lora_rank) is not compiled")
    for rope in _rope_types(text.get("rope_parameters") or {}):
        if rope in _LENGTH_DEPENDENT_ROPE:
            raise CheckpointError(f"{folder}: rope_type {rope!r} depends on the sequence length; it is not compiled")
    return config


def _rope_types(rope: Mapping[str, Any]) -> Iterable[str]:
    """rope_type of a config's rope_parameters, which some families keep once a layer type."""
    nested: list[Mapping[str, Any]] = [value for value in rope.values() if isinstance(value, dict)]
    return [part.get("rope_type", "default") for part in (nested or [rope])]


def _cache_shapes(config: PreTrainedConfig, layers: int) -> tuple[CacheShape, ...]:
    fields = config.to_dict()
    heads = fields["num_attention_heads"]
    shape = CacheShape(
        kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=fields.get("head_dim") or fields["hidden_size"] // heads,
    )
    return (shape,) * layers


def stop_token_ids(folder: Path, config: PreTrainedConfig) -> tuple[int, ...]:
    """Every id that ends an answer: generation_config.json's, the tokenizer's, or config.json's if those are silent."""
    stops: set[int] = set()
    generation = folder / "generation_config.json"
    if generation.is_file():
        stops |= _ids(json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id"))
    stops |= _ids(load_tokenizer(folder).eos_token_id)
    return tuple(sorted(stops or _ids(config.get_text_config().eos_token_id)))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The target's tokenizer. Raises CheckpointError when there is none that bundles can hold."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as fault:
        reason = str(fault).splitlines()[0]
        raise CheckpointError(f"{folder}: transformers cannot load a tokenizer from there: {reason}") from fault
    if not tokenizer.is_fast:
        raise CheckpointError(f"{folder}: its tokenizer has no tokenizer.json form; convert it to a fast one first")
    return tokenizer


def _ids(value: int | list[int] | None) -> set[int]:
    return set() if value is None else {value} if isinstance(value, int) else set(value)
