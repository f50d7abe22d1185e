"""Whether a drafter belongs to a target: every mismatch that would load, run and draft nonsense is refused here."""

from dflash_engines.contract import CacheShape, Geometry
from dflash_engines.errors import CheckpointError
from dflash_export.checkpoint import TargetModel
from dflash_export.drafter_config import DrafterConfig


def check_pair(target: TargetModel, drafter: DrafterConfig) -> None:
    """Raises CheckpointError naming the two numbers that disagree."""
    vocab, hidden = target.embedding.shape
    layers = len(target.layers)
    _equal("hidden_size", drafter.hidden_size, hidden)
    _equal("vocab_size", drafter.vocab_size, vocab)
    if drafter.num_target_layers is not None:
        _equal("num_target_layers", drafter.num_target_layers, layers)
    if max(drafter.target_layer_ids) >= layers:
        raise CheckpointError(
            f"target_layer_ids {list(drafter.target_layer_ids)} reach past the target's last layer, {layers - 1}"
        )
    if layers - 1 in drafter.target_layer_ids:
        raise CheckpointError(f"target_layer_ids name the last layer, {layers - 1}: transformers reports that one only "
                              "after the final norm, so what the drafter was trained on is ambiguous")  # fmt: skip
    if not 0 <= drafter.mask_token_id < vocab:
        raise CheckpointError(f"mask_token_id {drafter.mask_token_id} has no row in the target's embedding of {vocab}")
    if drafter.mask_token_id in target.stop_token_ids:
        raise CheckpointError(
            f"mask_token_id {drafter.mask_token_id} is one of the target's stop ids {list(target.stop_token_ids)}"
        )
    if strange := [i for i in target.stop_token_ids if not 0 <= i < vocab]:
        raise CheckpointError(f"stop id {strange[0]} of the target is not one of its {vocab} tokens")
    if target.model.get_output_embeddings().bias is not None:
        raise CheckpointError("the target's head has a bias; drafters share the head, and a biased one is not compiled")


def _equal(key: str, drafter: int, target: int) -> None:
    if drafter != target:
        raise CheckpointError(f"{key} is {drafter} in the drafter and {target} in the target; they are not a pair")


def geometry(target: TargetModel, drafter: DrafterConfig) -> Geometry:
    """The sizes that the pair's bindings depend on."""
    draft = CacheShape(kv_heads=drafter.num_key_value_heads, head_dim=drafter.head_dim)
    return Geometry(
        vocab_size=target.head.shape[0],
        hidden_size=drafter.hidden_size,
        taps=len(drafter.target_layer_ids),
        target_caches=target.caches,
        draft_caches=(draft,) * len(drafter.layers),
    )
