"""Mismatches that two configs show by themselves, and weights that can't be used: every one a line of its own."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_engines.errors import CheckpointError
from dflash_engines.finding import Finding, Verdict
from dflash_export.doctor.checkpoints import examine
from dflash_export.doctor.configs import compare
from dflash_export.doctor.material import Answer
from dflash_export.doctor.overflow import largest_numbers
from dflash_export.drafter_config import DrafterConfig
from tests.export.doctor.conftest import Healthy
from tests.models.tiny_pair import DRAFTER, TARGET

MISFITS: dict[str, tuple[Callable[[DrafterConfig], DrafterConfig], str, Verdict]] = {
    "hidden size": (lambda c: replace(c, hidden_size=128), "hidden_size", Verdict.FAULT),
    "padded vocabulary": (lambda c: replace(c, vocab_size=1088), "vocab_size", Verdict.FAULT),
    "another size of the target": (lambda c: replace(c, num_target_layers=12), "num_target_layers", Verdict.FAULT),
    "a tap past the end": (lambda c: replace(c, target_layer_ids=(1, 6)), "target_layer_ids", Verdict.FAULT),
    "the last layer": (lambda c: replace(c, target_layer_ids=(1, 5)), "target_layer_ids", Verdict.FAULT),
    "mask without a row": (lambda c: replace(c, mask_token_id=1024), "mask_token_id", Verdict.FAULT),
    "mask that stops": (lambda c: replace(c, mask_token_id=2), "mask_token_id", Verdict.FAULT),
    "mask that answers use": (lambda c: replace(c, mask_token_id=700), "mask_token_id", Verdict.WARNING),
    "another theta": (
        lambda c: replace(c, rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "rope", Verdict.WARNING,
    ),
}  # fmt: skip


Spoil = Callable[[dict[str, torch.Tensor]], None]


def ill(findings: list[Finding]) -> list[tuple[str, Verdict]]:
    return [(f.check, f.verdict) for f in findings if f.verdict is not Verdict.OK]


@pytest.mark.parametrize("name", MISFITS)
def test_configs_that_do_not_fit(name: str, healthy: Healthy) -> None:
    spoil, check, verdict = MISFITS[name]
    findings = compare(healthy.target, spoil(healthy.drafter.config), healthy.tokenizer)
    assert ill(findings) == [(check, verdict)]
    assert all(finding.fix for finding in findings if finding.verdict is not Verdict.OK)


def test_all_misfits_are_told_at_once(healthy: Healthy) -> None:
    spoilt = replace(healthy.drafter.config, hidden_size=128, mask_token_id=2)
    assert ill(compare(healthy.target, spoilt, healthy.tokenizer)) == [
        ("hidden_size", Verdict.FAULT), ("mask_token_id", Verdict.FAULT),
    ]  # fmt: skip


def test_a_missing_chat_template_is_told(healthy: Healthy) -> None:
    tokenizer = copy.deepcopy(healthy.tokenizer)
    tokenizer.chat_template = None
    assert ill(compare(healthy.target, healthy.drafter.config, tokenizer)) == [("chat template", Verdict.WARNING)]


def spoilt_folder(folder: Path, spoil: Spoil) -> Path:
    shutil.copytree(DRAFTER, folder)
    tensors = load_file(folder / "model.safetensors")
    spoil(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def quantise(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.0.mlp.up_proj.weight"] = tensors["layers.0.mlp.up_proj.weight"].mul(100).to(torch.int8)


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["fc.weight"]


@pytest.mark.parametrize(("spoil", "word"), [(quantise, "quantised"), (drop, "'fc.weight' is missing")])
def test_weights_that_cannot_be_used(spoil: Spoil, word: str, tmp_path: Path) -> None:
    drafter = spoilt_folder(tmp_path / "drafter", spoil)
    (found,) = examine(str(TARGET), str(drafter), [], 4, lambda _: None)
    assert found.verdict is Verdict.FAULT and word in found.found


def test_a_config_without_theta_is_told(tmp_path: Path) -> None:
    drafter = spoilt_folder(tmp_path / "drafter", lambda _: None)
    config = json.loads((drafter / "config.json").read_text())
    del config["rope_theta"]
    (drafter / "config.json").write_text(json.dumps(config))
    (found,) = examine(str(TARGET), str(drafter), [], 4, lambda _: None)
    assert found.verdict is Verdict.FAULT and "rope_theta" in found.found


def test_no_folder_is_bad_input_and_no_finding(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        examine(str(tmp_path / "nothing" / "here" / "at" / "all"), str(DRAFTER), [], 4, lambda _: None)


def test_large_numbers_are_told(healthy: Healthy) -> None:
    def grown(by: float) -> list[Answer]:
        return [replace(a, hidden=tuple(h * by for h in a.hidden)) for a in healthy.answers]

    assert ill(largest_numbers(healthy.drafter, healthy.answers)) == []
    assert {verdict for _, verdict in ill(largest_numbers(healthy.drafter, grown(1e4)))} == {Verdict.WARNING}
    assert {verdict for _, verdict in ill(largest_numbers(healthy.drafter, grown(float("inf"))))} == {Verdict.FAULT}
