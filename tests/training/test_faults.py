"""The known faults of DFlash training, each planted and caught.

The drafter's pass over many packed blocks must give what the reference drafter gives, block by block, when it
drafts for real; and a block's labels must be what the target verifies it against.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dflash_training import blocks as blocks_module
from dflash_training import drafter as drafter_module
from dflash_training import features as features_module
from dflash_training.batches import load_batch, recomputed_states
from dflash_training.blocks import Blocks, cut_blocks
from dflash_training.drafter import Drafter
from dflash_training.export import export_drafter
from dflash_training.generate import stack_states
from dflash_training.shape import DrafterOptions, DrafterShape, drafter_shape
from dflash_training.store import Example, Store
from tests.models.byte_tokenizer import MASK_TOKEN_ID
from tests.reference.reference_drafter import ReferenceDrafter
from tests.reference.reference_loop import GrowingTarget
from tests.training.conftest import TAPS, Material

CLOSE = 0.02  # states are kept in bf16
WINDOW = 12


def make_drafter(shape: DrafterShape) -> Drafter:
    """Random weights that bf16 holds exactly, lively enough for every key to matter."""
    torch.manual_seed(5)
    drafter = Drafter(shape)
    with torch.no_grad():
        for parameter in drafter.parameters():
            noise = torch.randn_like(parameter)
            lively = 1 + 0.2 * noise if parameter.ndim == 1 else 1.5 * noise / parameter.shape[1] ** 0.5
            parameter.copy_(lively.bfloat16())
    return drafter


def packed(material: Material, drafter: Drafter, example: Example, anchors: list[int]) -> tuple[Tensor, Blocks]:
    """Logits [A, K, V] of the trained form, all blocks in one pass, and the blocks."""
    states = recomputed_states(material.target, drafter.shape.target_layer_ids, 4096)
    batch = load_batch(states, [example], 512, torch.device("cpu"))
    revealed = torch.zeros(1, len(anchors), drafter.shape.block_size, dtype=torch.bool)
    revealed[..., 0] = True
    cut = cut_blocks(batch.tokens, batch.lengths, torch.tensor([anchors]), revealed, drafter.shape, batch.taps.shape[1])
    with torch.no_grad():
        hidden = drafter(batch.taps.float(), material.target.embedding[cut.tokens], cut)
    return (hidden @ material.target.head.T).view(len(anchors), drafter.shape.block_size, -1), cut


def drafted_one_by_one(material: Material, reference: ReferenceDrafter, tokens: tuple[int, ...], anchor: int) -> Tensor:
    """Logits [K, V] of the block at one anchor, as the decoding loop makes it."""
    _, hidden = GrowingTarget(material.plain).forward(tokens[:anchor])
    block = [tokens[anchor]] + [reference.mask_token_id] * (reference.block_size - 1)
    with torch.inference_mode():
        taps = reference.context_feature(hidden)
        logits: Tensor = reference(torch.tensor([block]), taps, anchor, reference.new_cache())
    return logits[0].clone()


def worst_difference(material: Material, folder: Path, window: int) -> float:
    """Largest difference of any drafted row between the packed form and the reference."""
    options = DrafterOptions(
        num_hidden_layers=2, target_layer_ids=TAPS, mask_token_id=MASK_TOKEN_ID, sliding_window=window
    )
    shape = drafter_shape(material.target.model.config, options)
    drafter = make_drafter(shape)
    export_drafter(dict(drafter.named_parameters()), drafter.tap_scale, shape, folder)
    reference = ReferenceDrafter.from_folder(folder, material.plain)
    example = Store((material.answers,)).examples[0]
    first = len(example.response.prompt_ids)
    anchors = [first, first + 2, first + 3, first + 11]  # some closer than the block is long
    logits, _ = packed(material, drafter, example, anchors)
    worst = 0.0
    for row, anchor in zip(logits, anchors, strict=True):
        expected = drafted_one_by_one(material, reference, example.response.token_ids, anchor)
        worst = max(worst, float((row - expected)[1:].abs().max()))
    return worst


@pytest.mark.parametrize("window", [0, WINDOW])
def test_packed_blocks_are_what_the_reference_drafts(material: Material, tmp_path: Path, window: int) -> None:
    assert worst_difference(material, tmp_path, window) < CLOSE


def own_feature_visible(anchors: Tensor, positions: Tensor, context: int, window: int) -> Tensor:
    return (torch.arange(context) <= anchors[..., None, None]).expand(*positions.shape, context)


def blocks_by_nearness(anchors: Tensor, block_size: int, *, causal: bool) -> Tensor:
    position = (anchors[0, :, None] + torch.arange(block_size)).flatten()
    return (position[:, None] - position).abs() < block_size


original_stack = stack_states


def taps_off_by_one(out: object, target_layer_ids: tuple[int, ...]) -> Tensor:
    return original_stack(out, tuple(i - 1 for i in target_layer_ids))  # type: ignore[arg-type]


def positions_off_by_one(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    block = positions.shape[1] - 4 * 8
    shifted = torch.cat([positions[:, :block], positions[:, block:] + 1], 1)
    return original_rotary(shifted, head_dim, theta)


original_rotary = drafter_module.rotary

FAULTS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "the anchor's own feature is visible": (blocks_module, "context_mask", own_feature_visible),
    "blocks closer than the block size see each other": (blocks_module, "block_mask", blocks_by_nearness),
    "a tap off by one": (features_module, "stack_states", taps_off_by_one),
    "positions off by one": (drafter_module, "rotary", positions_off_by_one),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    module, name, broken = FAULTS[fault]
    monkeypatch.setattr(module, name, broken)
    assert worst_difference(material, tmp_path, 0) > 10 * CLOSE


def label_mistakes(material: Material, cut: Callable[..., Blocks]) -> int:
    """Scored rows whose label is not the token that the target would verify the row against."""
    shape = drafter_shape(
        material.target.model.config, DrafterOptions(target_layer_ids=TAPS, mask_token_id=MASK_TOKEN_ID)
    )
    example = next(e for e in Store((material.answers,)).examples if e.response.temperature == 0)
    tokens = example.response.token_ids
    posterior = GrowingTarget(material.plain).forward(tokens[:-1])[0].argmax(-1)  # after token p: token p + 1
    anchors = torch.tensor([[len(example.response.prompt_ids), len(tokens) - 4]])
    revealed = torch.zeros(1, 2, shape.block_size, dtype=torch.bool)
    revealed[..., 0] = True
    lengths = torch.tensor([len(tokens)])
    got = cut(torch.tensor([tokens]), lengths, anchors, revealed, shape, len(tokens) - 1)
    assert int(got.scored.sum()) == shape.block_size - 1 + 3
    rows = (anchors[..., None] + torch.arange(shape.block_size)).flatten()[got.scored[0]]
    return int((got.labels[got.scored] != posterior[rows - 1]).sum())


def test_labels_are_what_the_target_verifies_against(material: Material) -> None:
    assert label_mistakes(material, cut_blocks) == 0


def test_labels_shifted_by_one_are_seen(material: Material) -> None:
    def shifted(tokens: Tensor, *rest: object) -> Blocks:
        return cut_blocks(tokens.roll(-1, dims=1), *rest)  # type: ignore[arg-type]

    assert label_mistakes(material, shifted) > 0
