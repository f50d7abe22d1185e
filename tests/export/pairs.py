"""Tiny pairs of every supported shape, written to disk once a test session."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.models.drafters import DrafterSpec, make_drafter
from tests.models.targets import FAMILIES, ROPES, Family, Rope, random_target, save_target, target_config


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCase:
    """A target's configuration and its drafter's."""

    name: str
    family: Family = "llama"
    rope: Rope = "default"
    tied: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    drafter: DrafterSpec = field(default_factory=DrafterSpec)


def write_pair(case: PairCase, folder: Path) -> tuple[Path, Path]:
    """Target and drafter folders of a case."""
    config = target_config(case.family, rope=case.rope, tied=case.tied, settings=case.settings)
    target = save_target(random_target(config), folder / "target")
    return target, make_drafter(folder / "drafter", config, case.drafter)


FAMILY_CASES = tuple(PairCase(name=family, family=family) for family in FAMILIES)
ROPE_CASES = tuple(
    PairCase(name=f"{family}-{rope}", family=family, rope=rope)
    for family in FAMILIES
    for rope in ROPES
    if rope != "default"
)
MIXED_LAYERS = ("sliding_attention", "full_attention")
NESTED_YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0,
                                   "original_max_position_embeddings": 32}}  # fmt: skip
DRAFTER_CASES = (
    PairCase(name="one-tap-one-layer", drafter=DrafterSpec(target_layer_ids=(1,), num_layers=1)),
    PairCase(name="taps-out-of-order", drafter=DrafterSpec(target_layer_ids=(2, 0, 1), num_layers=3)),
    PairCase(name="one-kv-head", drafter=DrafterSpec(num_heads=4, num_kv_heads=1)),
    PairCase(name="no-grouping", drafter=DrafterSpec(num_heads=3, num_kv_heads=3, head_dim=8)),
    PairCase(name="wide-heads", drafter=DrafterSpec(num_heads=2, num_kv_heads=2, head_dim=32)),
    PairCase(name="attention-bias", drafter=DrafterSpec(attention_bias=True)),
    PairCase(name="sliding", drafter=DrafterSpec(layer_types=MIXED_LAYERS, sliding_window=9)),
    PairCase(name="window-below-block", drafter=DrafterSpec(layer_types=("sliding_attention",) * 2, sliding_window=3)),
    PairCase(name="sliding-not-causal", drafter=DrafterSpec(
        layer_types=MIXED_LAYERS, sliding_window=9, top_level={"is_causal": False})),
    PairCase(name="causal-by-dflash-config", drafter=DrafterSpec(dflash={"causal": True})),
    PairCase(name="block-16", drafter=DrafterSpec(block_size=16)),
    PairCase(name="block-2", drafter=DrafterSpec(block_size=2)),
    PairCase(name="rope-nested-yarn", drafter=DrafterSpec(rope=NESTED_YARN)),
    PairCase(name="rope-linear", drafter=DrafterSpec(
        rope={"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 3.0}})),
    PairCase(name="scales", family="gemma2", drafter=DrafterSpec(
        dflash={"input_embedding_scale": 6.9, "output_multiplier": 0.4, "final_logit_softcapping": 5.0})),
    PairCase(name="tied", tied=True),
    PairCase(name="target-biases", settings={"attention_bias": True}),
    PairCase(name="gemma3-tied-yarn", family="gemma3", rope="yarn", tied=True),
)  # fmt: skip
