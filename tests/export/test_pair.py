"""Pairs that would load and draft nonsense are refused, with both numbers; broken weights are named."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_engines.errors import CheckpointError
from dflash_export.checkpoint import load_target, locate, read_config, stop_token_ids
from dflash_export.drafter import load
from dflash_export.drafter_config import DrafterConfig
from dflash_export.pair import check_pair
from tests.export.pairs import PairCase, write_pair
from tests.models.byte_tokenizer import END_OF_TEXT_ID, END_OF_TURN_ID
from tests.models.targets import save_target, target_config


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(PairCase(name="pair"), tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "hidden_size is 64 in the drafter and 48"),
        ({"vocab_size": 300}, "vocab_size is 300 in the drafter and 260"),
        ({"num_target_layers": 36}, "num_target_layers is 36 in the drafter and 4"),
        ({"target_layer_ids": (0, 4)}, "reach past the target's last layer, 3"),
        ({"target_layer_ids": (0, 3)}, "name the last layer, 3"),
        ({"mask_token_id": 260}, "has no row"),
        ({"mask_token_id": END_OF_TURN_ID}, "stop ids"),
    ],
)
def test_mismatches_are_refused(folders: tuple[Path, Path], change: dict[str, Any], message: str) -> None:
    config = replace(DrafterConfig.from_folder(folders[1]), **change)
    with pytest.raises(CheckpointError, match=message):
        check_pair(load_target(folders[0]), config)


def test_stop_ids_come_from_generation_config_and_tokenizer(folders: tuple[Path, Path]) -> None:
    assert stop_token_ids(folders[0], read_config(folders[0])) == (END_OF_TEXT_ID, END_OF_TURN_ID)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_types": ["linear_attention", "full_attention"] * 2}, "linear_attention"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    ],
)
def test_targets_that_are_not_compiled_are_refused_by_name(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    target_config("qwen3", settings=settings).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


def broken(folder: Path, out: Path, **tensors: torch.Tensor | None) -> Path:
    """A copy of the drafter with tensors replaced, added, or (None) left out."""
    out.mkdir()
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    weights = load_file(folder / "model.safetensors") | {k.replace("__", "."): v for k, v in tensors.items()}
    save_file({k: v for k, v in weights.items() if v is not None}, out / "model.safetensors")
    return out


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"fc__weight": None}, "'fc.weight' is missing"),
        ({"mask_hidden": torch.zeros(48)}, "'mask_hidden' is not part"),
        ({"lm_head__weight": torch.zeros(260, 48)}, "'lm_head.weight' is not part"),
        ({"fc__weight": torch.zeros(48, 48)}, "fc.weight is"),
        ({"norm__weight": torch.zeros(48, dtype=torch.int8)}, "quantised"),
    ],
)
def test_drafter_weights_that_are_not_as_they_should_be(
    folders: tuple[Path, Path], tmp_path: Path, tensors: dict[str, torch.Tensor | None], message: str
) -> None:
    folder = broken(folders[1], tmp_path / "broken", **tensors)
    with pytest.raises(CheckpointError, match=message):
        load(folder, DrafterConfig.from_folder(folder))


def test_missing_and_truncated_weight_files_are_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \*.safetensors"):
        load(tmp_path, DrafterConfig.from_folder(folders[1]))
    whole = (folders[1] / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load(tmp_path, DrafterConfig.from_folder(folders[1]))


def damaged(target: Path, out: Path, *left_out: str) -> Path:
    """A copy of the target without some files or, by a dotted name, without some tensors."""
    shutil.copytree(target, out, ignore=shutil.ignore_patterns(*left_out))
    weights = load_file(out / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if name not in left_out}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_a_target_that_misses_a_weight_is_refused_not_filled_in(folders: tuple[Path, Path], tmp_path: Path) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    with pytest.raises(CheckpointError, match=f"weight '{name}' is missing"):
        load_target(damaged(folders[0], tmp_path / "target", name))


def test_a_target_cut_short_or_without_tokenizer_is_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    no_tokenizer = damaged(folders[0], tmp_path / "bare", "tokenizer*")
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_target(no_tokenizer)
    cut = damaged(folders[0], tmp_path / "cut")
    whole = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot load this target"):
        load_target(cut)


def test_a_name_that_is_neither_folder_nor_id_is_said_to_be_so() -> None:
    with pytest.raises(CheckpointError, match="no folder here"):
        locate("no such folder / nor id")


def test_a_stop_id_outside_of_the_vocabulary_is_refused(folders: tuple[Path, Path]) -> None:
    target = replace(load_target(folders[0]), stop_token_ids=(0, 260))
    with pytest.raises(CheckpointError, match="stop id 260 of the target is not one of its 260 tokens"):
        check_pair(target, DrafterConfig.from_folder(folders[1]))


def test_a_biased_head_is_refused(folders: tuple[Path, Path]) -> None:
    target = load_target(folders[0])
    target.model.get_output_embeddings().bias = torch.nn.Parameter(torch.zeros(260))
    with pytest.raises(CheckpointError, match="bias"):
        check_pair(target, DrafterConfig.from_folder(folders[1]))


def test_saved_targets_are_whole(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    """The factory that other tests lean on writes what a real checkpoint has."""
    save_target(load_target(folders[0]).model, tmp_path)
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= {p.name for p in tmp_path.iterdir()}
