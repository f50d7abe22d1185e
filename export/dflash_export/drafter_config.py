"""A DFlash v1 drafter's config.json, read strictly: what changes the arithmetic is read, or refused by its name.

Keys and defaults follow the published z-lab checkpoints; a missing required key is an error, never a guess.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_engines.errors import CheckpointError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_DFLASH_KEYS = {"mask_token_id", "target_layer_ids", "block_size", "causal", "input_embedding_scale",
                "output_multiplier", "final_logit_softcapping", "num_target_layers"}  # fmt: skip
_READ_KEYS = {"dflash_config", "block_size", "hidden_size", "intermediate_size", "num_attention_heads",
              "num_key_value_heads", "head_dim", "num_hidden_layers", "layer_types", "sliding_window",
              "use_sliding_window", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
              "attention_bias", "hidden_act", "vocab_size", "is_causal", "num_target_layers",
              "input_embedding_scale", "output_multiplier", "final_logit_softcapping"}  # fmt: skip
_HARMLESS_KEYS = {"architectures", "auto_map", "model_type", "max_window_layers", "max_position_embeddings",
                  "tie_word_embeddings", "attention_dropout", "dtype", "torch_dtype", "bos_token_id", "eos_token_id",
                  "pad_token_id", "initializer_range", "transformers_version", "use_cache", "bos", "eos",
                  "_name_or_path", "name_or_path", "license"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What a drafter layer's queries may see: a causal block or a whole one, all of the context or a window."""

    causal: bool
    window: int | None  # counts the current token, as in transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """Everything about a drafter that its arithmetic depends on."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layers: tuple[LayerAttention, ...]
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    block_size: int
    mask_token_id: int
    vocab_size: int
    rms_norm_eps: float
    rope_parameters: Mapping[str, Any]
    attention_bias: bool
    hidden_act: str
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None

    @staticmethod
    def from_folder(folder: Path) -> "DrafterConfig":
        """Read `folder`/config.json. Raises CheckpointError naming the file and the key."""
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist; a drafter is a folder in z-lab's format") from None
        except ValueError as fault:
            raise CheckpointError(f"{path} is not JSON: {fault}") from fault
        return DrafterConfig.from_dict(raw, where=str(path))

    @staticmethod
    def from_dict(raw: Mapping[str, Any], *, where: str = "config.json") -> "DrafterConfig":
        """Build from a parsed config.json. Raises CheckpointError naming the key at fault."""
        return _Reader(raw, where).config()


class _Reader:
    """Typed reads from one config.json, with errors that name it."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.where = where
        if not isinstance(raw, Mapping):
            raise self.fault("it holds no JSON object")
        self.raw = raw
        if raw.get("architectures") != ["DFlashDraftModel"]:
            found = raw.get("architectures")
            raise self.fault(f'architectures is {found}; only ["DFlashDraftModel"] (DFlash v1) is compiled')
        self.dflash = self.read(raw, "dflash_config", dict)
        self.refuse_unknown()

    def fault(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {message}")

    def refuse_unknown(self) -> None:
        strange = [f"dflash_config.{key}" for key in sorted(set(self.dflash) - _DFLASH_KEYS)]
        strange += sorted(set(self.raw) - _READ_KEYS - _HARMLESS_KEYS)
        if strange:
            raise self.fault(f"{strange[0]!r} is not a key that this version computes; the drafts would be wrong")

    def read(self, source: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
        value = source.get(key)
        if value is None:
            raise self.fault(f"the key {key!r} is required and missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fault(f"{key} is {value!r}, which is not of the right type")
        return value

    def size(self, key: str) -> int:
        value: int = self.read(self.raw, key, int)
        if value < 1:
            raise self.fault(f"{key} is {value}; it must be at least 1")
        return value

    def either(self, key: str) -> Any:
        """A key that may stand in dflash_config (first) or at the top level; None when in neither."""
        value = self.dflash.get(key)
        return self.raw.get(key) if value is None else value

    def number(self, key: str, default: float) -> float:
        value = self.either(key)
        return default if value is None else self.finite(key, value)

    def finite(self, key: str, value: Any) -> float:
        """`value` of `key` as a number that is neither NaN nor infinite."""
        number = float(self.read({key: value}, key, (int, float)))
        if not math.isfinite(number):
            raise self.fault(f"{key} is {number}")
        return number

    def flag(self, source: Mapping[str, Any], key: str) -> bool | None:
        """A key that is true, false, or not there."""
        return None if source.get(key) is None else bool(self.read(source, key, bool))

    def epsilon(self) -> float:
        value = self.finite("rms_norm_eps", self.raw.get("rms_norm_eps"))
        if value <= 0:
            raise self.fault(f"rms_norm_eps is {value}; it must be above 0")
        return value

    def required_int(self, key: str) -> int:
        return int(self.read({key: self.either(key)}, key, int))

    def target_layer_ids(self) -> tuple[int, ...]:
        ids = tuple(self.read(self.dflash, "target_layer_ids", list))
        if not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise self.fault(f"dflash_config.target_layer_ids is {list(ids)}; it must list layers of the target")
        if len(set(ids)) != len(ids):
            raise self.fault(f"dflash_config.target_layer_ids {list(ids)} names a layer twice")
        return ids

    def attention_layers(self) -> tuple[LayerAttention, ...]:
        count = self.size("num_hidden_layers")
        types = self.raw.get("layer_types") or ["full_attention"] * count
        self.read({"layer_types": types}, "layer_types", list)
        if len(types) != count:
            raise self.fault(f"layer_types has {len(types)} entries for num_hidden_layers {count}")
        return tuple(self.attention_layer(kind) for kind in types)

    def attention_layer(self, kind: str) -> LayerAttention:
        if kind not in ("full_attention", "sliding_attention"):
            raise self.fault(f"layer_types has {kind!r}; only full_attention and sliding_attention are compiled")
        sliding = kind == "sliding_attention"
        causal = self.flag(self.raw, "is_causal")
        causal = self.flag(self.dflash, "causal") if causal is None else causal
        window = self.size("sliding_window") if sliding else None
        return LayerAttention(causal=sliding if causal is None else causal, window=window)

    def rope(self) -> dict[str, Any]:
        """RoPE as transformers 5 nests it, from either form. The drafter's own config alone decides."""
        rope: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):
            rope |= self.read(self.raw, key, dict) if self.raw.get(key) else {}
        rope["rope_type"] = rope.pop("type", rope.get("rope_type", "default"))
        if rope["rope_type"] not in ROPE_TYPES:
            raise self.fault(f"rope_type {rope['rope_type']!r} is not compiled; known: {', '.join(ROPE_TYPES)}")
        rope.setdefault("rope_theta", self.raw.get("rope_theta"))
        if rope["rope_theta"] is None:
            raise self.fault("no rope_theta, neither flat nor in rope_parameters")
        rope["rope_theta"] = self.finite("rope_theta", rope["rope_theta"])
        if rope.get("partial_rotary_factor", 1) != 1:
            raise self.fault("partial_rotary_factor is not computed for drafters")
        if rope["rope_type"] == "yarn" and "original_max_position_embeddings" not in rope:
            rope["original_max_position_embeddings"] = self.size("max_position_embeddings")
        return rope

    def activation(self) -> str:
        name = self.raw.get("hidden_act", "silu")
        if name != "silu":
            raise self.fault(f"hidden_act is {name!r}; published drafters use silu, and nothing else is compiled")
        return "silu"

    def config(self) -> DrafterConfig:
        heads = self.size("num_attention_heads")
        softcap = self.number("final_logit_softcapping", 0.0)
        config = DrafterConfig(
            hidden_size=self.size("hidden_size"),
            intermediate_size=self.size("intermediate_size"),
            num_attention_heads=heads,
            num_key_value_heads=self.size("num_key_value_heads"),
            head_dim=self.size("head_dim"),
            layers=self.attention_layers(),
            target_layer_ids=self.target_layer_ids(),
            num_target_layers=None
            if self.either("num_target_layers") is None
            else self.required_int("num_target_layers"),
            block_size=self.required_int("block_size"),
            mask_token_id=self.required_int("mask_token_id"),
            vocab_size=self.size("vocab_size"),
            rms_norm_eps=self.epsilon(),
            rope_parameters=self.rope(),
            attention_bias=bool(self.flag(self.raw, "attention_bias")),
            hidden_act=self.activation(),
            input_embedding_scale=self.number("input_embedding_scale", 1.0),
            output_multiplier=self.number("output_multiplier", 1.0),
            final_logit_softcapping=softcap or None,
        )
        if heads % config.num_key_value_heads:
            raise self.fault(f"{heads} attention heads do not divide into {config.num_key_value_heads} key/value heads")
        if config.block_size < 2:
            raise self.fault(f"block_size is {config.block_size}; a drafter proposes at least one token (2)")
        return config
