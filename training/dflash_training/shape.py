"""What a drafter looks like, and the z-lab config that says so."""

from dataclasses import dataclass

from transformers import PretrainedConfig

from dflash_training.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """Sizes of a DFlash drafter. `sliding_window` 0: full attention; else all layers slide, causal in a block."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    sliding_window: int = 0

    def config(self) -> dict[str, object]:
        """The z-lab `config.json`."""
        kind = "sliding_attention" if self.sliding_window else "full_attention"
        return {
            "architectures": ["DFlashDraftModel"],
            "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
            "model_type": "qwen3",
            "block_size": self.block_size,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
            },
            "num_target_layers": self.num_target_layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "num_hidden_layers": self.num_hidden_layers,
            "layer_types": [kind] * self.num_hidden_layers,
            "max_window_layers": self.num_hidden_layers,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rms_norm_eps": self.rms_norm_eps,
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "sliding_window": self.sliding_window or None,
            "use_sliding_window": bool(self.sliding_window),
            "dtype": "bfloat16",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterOptions:
    """What a user chooses of a drafter's shape; None: as the target's, or up to `taps` spread evenly."""

    num_hidden_layers: int = 4
    block_size: int = 8
    mask_token_id: int = 4
    target_layer_ids: tuple[int, ...] | None = None
    intermediate_size: int | None = None
    sliding_window: int = 0
    taps: int = 5


def spread_taps(num_target_layers: int, taps: int) -> tuple[int, ...]:
    """Evenly from the second to the third-to-last layer, as the paper does; fewer where they don't fit."""
    first, last = 1, num_target_layers - 3
    if last < first:
        raise TrainingError(f"a target of {num_target_layers} layers has none to spread taps over; give --layer-ids")
    taps = min(taps, last - first + 1)
    if taps == 1:
        return (last,)
    return tuple(round(first + i * (last - first) / (taps - 1)) for i in range(taps))


def drafter_shape(target: PretrainedConfig, options: DrafterOptions) -> DrafterShape:
    """The shape that fits a target: its width, heads and rotary base, the options' depth and block.

    Raises:
        TrainingError: a tap or the mask token does not exist, or taps the last (normed) layer.
    """
    layers = target.num_hidden_layers
    taps = options.target_layer_ids or spread_taps(layers, options.taps)
    if not all(0 <= tap < layers - 1 for tap in taps):
        raise TrainingError(f"target_layer_ids {list(taps)}: ids must lie in 0..{layers - 2} for this target")
    if not 0 <= options.mask_token_id < target.vocab_size:
        raise TrainingError(f"mask_token_id {options.mask_token_id}: the vocabulary has {target.vocab_size} tokens")
    return DrafterShape(
        hidden_size=target.hidden_size,
        intermediate_size=options.intermediate_size or target.intermediate_size,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads,
        num_hidden_layers=options.num_hidden_layers,
        num_target_layers=layers,
        target_layer_ids=tuple(taps),
        block_size=options.block_size,
        mask_token_id=options.mask_token_id,
        vocab_size=target.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=float(target.rope_parameters["rope_theta"]),
        max_position_embeddings=target.max_position_embeddings,
        sliding_window=options.sliding_window,
    )
