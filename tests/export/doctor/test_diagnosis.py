"""Settings spoilt one at a time in a pair that is well: each is named, with the value that would be right."""

import copy
from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import pytest
import torch

from dflash_engines.finding import Finding, Verdict
from dflash_export.checkpoint import load_target
from dflash_export.doctor.diagnosis import conditional, diagnose
from dflash_export.doctor.simulation import Setting, kept_tokens
from dflash_export.doctor.taps import compare as compare_taps
from dflash_export.drafter import Drafter
from dflash_export.drafter import load as load_drafter
from dflash_export.drafter_config import DrafterConfig
from tests.export.doctor.conftest import Healthy
from tests.models.tiny_pair import DRAFTER, TARGET

Spoil = Callable[[DrafterConfig], DrafterConfig]


def theta(config: DrafterConfig, value: float) -> DrafterConfig:
    return replace(config, rope_parameters=dict(config.rope_parameters) | {"rope_theta": value})


SPOILT: dict[str, tuple[Spoil, str, str]] = {
    "taps one too low": (lambda c: replace(c, target_layer_ids=(0, 2, 3)), "one too low", "[1, 3, 4]"),
    "taps reversed": (lambda c: replace(c, target_layer_ids=(4, 3, 1)), "another order", "[1, 3, 4]"),
    "wrong mask token": (lambda c: replace(c, mask_token_id=700), "mask_token_id", "mask_token_id to 3"),
    "wrong rope_theta": (lambda c: theta(c, 1e6), "rope_theta", "rope_theta to 10000"),
    "embedding scaled": (
        lambda c: replace(c, input_embedding_scale=sqrt(160)), "input_embedding_scale", "input_embedding_scale to 1",
    ),
    "block made causal": (
        lambda c: replace(c, layers=tuple(replace(v, causal=True) for v in c.layers)),
        "causality",
        "is_causal to false",
    ),
}  # fmt: skip


def diagnosed(healthy: Healthy, drafter: Drafter) -> tuple[Finding, Finding]:
    signature, settings = diagnose(healthy.target, drafter, healthy.answers, healthy.tokenizer)
    return signature, settings


def test_a_healthy_pair_is_not_called_ill(healthy: Healthy) -> None:
    signature, settings = diagnosed(healthy, healthy.drafter)
    assert (signature.verdict, settings.verdict) == (Verdict.OK, Verdict.OK)


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_setting_is_named_and_put_right(name: str, healthy: Healthy) -> None:
    spoil, what, fix = SPOILT[name]
    drafter = copy.deepcopy(healthy.drafter)
    drafter.config = spoil(drafter.config)
    _, settings = diagnosed(healthy, drafter)
    assert settings.verdict is Verdict.FAULT
    assert what in settings.found and fix in settings.fix


def test_another_targets_drafter_is_recognised(healthy: Healthy) -> None:
    stranger = copy.deepcopy(healthy.drafter)
    torch.manual_seed(0)
    for parameter in stranger.parameters():
        if parameter.dim() == 2:
            parameter.copy_(torch.randn_like(parameter) * parameter.std())
    signature, settings = diagnosed(healthy, stranger)
    assert signature.verdict is not Verdict.OK
    assert settings.verdict is Verdict.FAULT and "don't know this target" in settings.found


def test_simulation_leaves_the_drafter_as_it_was(healthy: Healthy) -> None:
    before = healthy.drafter.config
    other = replace(before, rope_parameters={"rope_type": "default", "rope_theta": 77.0})
    kept_tokens(healthy.target, healthy.drafter, healthy.answers, Setting(name="x", config=other))
    assert healthy.drafter.config is before
    fresh = load_drafter(DRAFTER, before)
    assert torch.equal(healthy.drafter.rope.inv_freq, fresh.rope.inv_freq)


def test_conditional_shares() -> None:
    assert conditional(torch.tensor([0, 1, 3, 3]), block_size=4) == [0.75, 2 / 3, 1.0]
    assert conditional(torch.tensor([0, 0]), block_size=4) == [0.0]


def test_a_tap_that_is_another_layers_output_is_named(healthy: Healthy) -> None:
    answer = healthy.answers[0]
    shifted = replace(answer, hidden=(answer.hidden[0], *answer.hidden[:-1]))
    right, wrong = (
        compare_taps(load_target(TARGET), load_drafter(DRAFTER, healthy.drafter.config), a) for a in (answer, shifted)
    )
    assert [finding.verdict for finding in right] == [Verdict.OK] * 3
    assert [finding.verdict for finding in wrong] == [Verdict.FAULT] * 3
    assert "hidden_states[3] is nearest" in wrong[0].found
