"""The reference is only worth its name if it is right itself: checked against `transformers` and by hand."""

from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

from tests.models.drafters import DrafterSpec, make_drafter
from tests.models.targets import FAMILIES, HIDDEN_SIZE, ROPES, Family, Rope, random_target, target_config
from tests.reference.reference_drafter import Attention, LayerCache, ReferenceDrafter, Visibility
from tests.reference.reference_loop import accepted_count, cut, plain_greedy, reference_loop

PROMPT = [4 + (37 * i) % 251 for i in range(23)]
NEW_TOKENS = 60
WINDOW = 6
KINDS = [(family, rope, (i + j) % 2 == 1) for i, family in enumerate(FAMILIES) for j, rope in enumerate(ROPES)]
FULL = DrafterSpec()
SLIDING = DrafterSpec(num_layers=1, layer_types=("sliding_attention",), sliding_window=WINDOW)


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return random_target(target_config("llama"))


def load_drafter(folder: Path, target: PreTrainedModel, spec: DrafterSpec) -> ReferenceDrafter:
    return ReferenceDrafter.from_folder(make_drafter(folder, target.config, spec), target)


@torch.inference_mode()
def first_draft(drafter: ReferenceDrafter, taps: torch.Tensor, block: list[int]) -> torch.Tensor:
    """Logits [K, V] of a block right behind its context."""
    logits: torch.Tensor = drafter(torch.tensor([block]), taps, taps.shape[1], drafter.new_cache())
    return logits[0]


def random_taps(rows: int) -> torch.Tensor:
    return torch.randn(1, rows, 2 * HIDDEN_SIZE, generator=torch.Generator().manual_seed(3))


def hf_greedy(target: PreTrainedModel) -> list[int]:
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=[0], pad_token_id=0)
    generated = target.generate(torch.tensor([PROMPT]), generation_config=config)  # type: ignore[operator]
    return generated[0, len(PROMPT) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("family", "rope", "tied"), KINDS)
def test_speculation_changes_nothing(family: Family, rope: Rope, tied: bool, tmp_path: Path) -> None:
    model = random_target(target_config(family, rope=rope, tied=tied))
    drafter = load_drafter(tmp_path, model, FULL)
    expected = hf_greedy(model)
    assert len(set(expected)) > 4, "so monotonous a target hides mistakes"
    assert plain_greedy(model, PROMPT, NEW_TOKENS, {0}) == expected
    assert reference_loop(model, drafter, PROMPT, NEW_TOKENS, 8, {0}).token_ids == expected


def test_result_lists_every_pass(target: PreTrainedModel, tmp_path: Path) -> None:
    result = reference_loop(target, load_drafter(tmp_path, target, FULL), PROMPT, NEW_TOKENS, 5)
    assert max(result.acceptance_lengths) > 1
    assert NEW_TOKENS <= 1 + sum(result.acceptance_lengths) < NEW_TOKENS + 5
    assert len(result.drafts) == len(result.draft_logits) == len(result.acceptance_lengths)
    done = 1
    for draft, logits, length in zip(result.drafts, result.draft_logits, result.acceptance_lengths, strict=True):
        assert draft == logits.argmax(dim=-1).tolist() and len(draft) == 4
        kept = result.token_ids[done : done + length - 1]
        assert kept == draft[: len(kept)]
        done += length


def test_stop_token_ends_the_answer(target: PreTrainedModel, tmp_path: Path) -> None:
    drafter = load_drafter(tmp_path, target, FULL)
    tokens = plain_greedy(target, PROMPT, NEW_TOKENS)
    for stop in tokens[::15]:
        expected = tokens[: tokens.index(stop) + 1]
        assert reference_loop(target, drafter, PROMPT, NEW_TOKENS, 8, {stop}).token_ids == expected
        assert plain_greedy(target, PROMPT, NEW_TOKENS, {stop}) == expected


def test_cached_context_equals_whole_context(target: PreTrainedModel, tmp_path: Path) -> None:
    drafter = load_drafter(tmp_path, target, FULL)
    taps, block, cache = random_taps(20), torch.tensor([[9, 2, 2, 2]]), drafter.new_cache()
    with torch.inference_mode():
        for begin, end in [(0, 11), (11, 12), (12, 16), (16, 20)]:
            grown = drafter(block, taps[:, begin:end], end, cache)[0]
    torch.testing.assert_close(grown, first_draft(drafter, taps, block[0].tolist()))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("head_dim", [8, 12, 20])
def test_attention_equals_qwen3(head_dim: int, kv_heads: int, bias: bool) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=HIDDEN_SIZE,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        attention_bias=bias,
    )
    config._attn_implementation = "eager"
    visibility = Visibility(causal=True, window=7)
    ours, theirs = Attention(config, visibility), Qwen3Attention(config, layer_idx=0)
    ours.load_state_dict(theirs.state_dict())
    rows = torch.randn(1, 15, HIDDEN_SIZE)
    cos, sin = Qwen3RotaryEmbedding(config)(rows, torch.arange(15)[None])
    mask = torch.zeros(15, 15).masked_fill(~visibility.mask(15, 15), -torch.inf)[None, None]
    expected = theirs(rows, position_embeddings=(cos, sin), attention_mask=mask)[0][:, -4:]
    torch.testing.assert_close(ours(rows[:, -4:], rows[:, :-4], cos, sin, LayerCache()), expected)


def test_window_counts_the_query_itself(target: PreTrainedModel, tmp_path: Path) -> None:
    drafter, taps, block = load_drafter(tmp_path, target, SLIDING), random_taps(20), [9, 2, 2, 2]
    before = first_draft(drafter, taps, block)
    for row in range(20):
        moved = taps.clone()
        moved[:, row] += 1.0
        changed = (first_draft(drafter, moved, block) != before).any(dim=-1).tolist()
        assert changed == [20 + j - row < WINDOW for j in range(4)]


CAUSALITY = [
    (FULL, False),
    (SLIDING, True),
    (DrafterSpec(top_level={"is_causal": True}), True),
    (DrafterSpec(dflash={"causal": True}), True),
    (DrafterSpec(top_level={"is_causal": False}, dflash={"causal": True}), False),
    (
        DrafterSpec(layer_types=("sliding_attention",) * 2, sliding_window=WINDOW, dflash={"causal": False}),
        False,
    ),
]


@pytest.mark.parametrize(("spec", "causal"), CAUSALITY)
def test_causality_inside_the_block(spec: DrafterSpec, causal: bool, target: PreTrainedModel, tmp_path: Path) -> None:
    drafter, taps = load_drafter(tmp_path, target, spec), random_taps(5)
    changed = first_draft(drafter, taps, [9, 2, 2, 2]) != first_draft(drafter, taps, [9, 2, 2, 30])
    assert changed.any(dim=-1).tolist() == [not causal, not causal, not causal, True]


ROPE_FORMS = [
    ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 5e5}),
    (
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
    ),
    (
        {
            "rope_theta": 5e5,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
            },
        },
        {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64},
    ),
]


@pytest.mark.parametrize(("flat", "nested"), ROPE_FORMS, ids=["default", "linear", "yarn"])
def test_flat_and_nested_rope_agree(
    flat: dict[str, object], nested: dict[str, object], target: PreTrainedModel, tmp_path: Path
) -> None:
    taps, block = random_taps(30), [9, 2, 2]
    plain = first_draft(load_drafter(tmp_path / "plain", target, FULL), taps, block)
    first = first_draft(load_drafter(tmp_path / "flat", target, DrafterSpec(rope=flat)), taps, block)
    spec = DrafterSpec(rope={"rope_parameters": nested})
    second = first_draft(load_drafter(tmp_path / "nested", target, spec), taps, block)
    assert torch.equal(first, second) and not torch.allclose(first, plain)


SCALES = {"input_embedding_scale": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 3.0}


@pytest.mark.parametrize("spec", [DrafterSpec(dflash=SCALES), DrafterSpec(top_level=SCALES)])
def test_scales_and_soft_cap(spec: DrafterSpec, target: PreTrainedModel, tmp_path: Path) -> None:
    taps, block = random_taps(5), [9, 2, 2]
    plain = load_drafter(tmp_path / "plain", target, FULL)
    scaled = load_drafter(tmp_path / "scaled", target, spec)
    assert torch.equal(scaled.embed(torch.tensor([block])), 2 * plain.embed(torch.tensor([block])))
    scaled.input_embedding_scale = 1.0
    expected = 3 * torch.tanh(first_draft(plain, taps, block) * 0.5 / 3)
    torch.testing.assert_close(first_draft(scaled, taps, block), expected)


def test_block_is_embedded_by_the_raw_table(tmp_path: Path) -> None:
    gemma = random_target(target_config("gemma3"))
    block = torch.tensor([[9, 2]])
    embedded, scaled = load_drafter(tmp_path, gemma, FULL).embed(block), gemma.get_input_embeddings()(block)
    torch.testing.assert_close(embedded * HIDDEN_SIZE**0.5, scaled)


def test_taps_are_layer_outputs(target: PreTrainedModel, tmp_path: Path) -> None:
    drafter = load_drafter(tmp_path, target, DrafterSpec(target_layer_ids=(2, 0)))
    seen: dict[int, torch.Tensor] = {}
    for i in (0, 2):
        layer = target.get_submodule(f"model.layers.{i}")
        layer.register_forward_hook(lambda _, __, output, i=i: seen.__setitem__(i, output))
    hidden_states = target(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    assert torch.equal(drafter.context_feature(hidden_states), torch.cat([seen[2], seen[0]], dim=-1))


def test_accepts_the_longest_right_prefix() -> None:
    assert accepted_count([5, 6, 7], [5, 6, 7, 8]) == 3
    assert accepted_count([5, 6, 7], [5, 9, 7, 8]) == 1
    assert accepted_count([5, 6, 7], [6, 6, 7, 8]) == 0


def test_cut_keeps_the_stop_token_and_the_budget() -> None:
    assert cut([1, 2, 3, 2], 4, {2}) == [1, 2]
    assert cut([1, 2, 3, 2], 1, {2}) == [1]
    assert cut([1, 2, 3, 2], 9, ()) == [1, 2, 3, 2]
