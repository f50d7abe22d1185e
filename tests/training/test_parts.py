"""Models in parts, and stores that refuse what is not theirs."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_training.errors import TrainingError
from dflash_training.parts import is_split, join_folder, split_folder
from dflash_training.store import Response, read_responses, write_manifest, write_responses
from dflash_training.train import TrainConfig, Trainer
from tests.training.conftest import TAPS, Material


@pytest.fixture
def parts(material: Material, tmp_path: Path) -> Path:
    split_folder(material.folder, tmp_path / "parts", size=100_000)
    return tmp_path / "parts"


def test_joined_files_are_the_split_ones(material: Material, parts: Path, tmp_path: Path) -> None:
    assert is_split(parts)
    assert all(part.stat().st_size <= 100_000 for part in parts.iterdir())
    join_folder(parts, tmp_path / "joined")
    for path in material.folder.iterdir():
        assert (tmp_path / "joined" / path.name).read_bytes() == path.read_bytes()


def test_a_changed_part_is_refused(parts: Path, tmp_path: Path) -> None:
    part = max(parts.glob("0*"), key=lambda path: path.stat().st_size)
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(data)
    with pytest.raises(TrainingError, match="another sha256"):
        join_folder(parts, tmp_path / "joined")


def test_a_missing_part_is_named(parts: Path, tmp_path: Path) -> None:
    (parts / "0001").unlink()
    with pytest.raises(TrainingError, match="0001: missing"):
        join_folder(parts, tmp_path / "joined")


def test_responses_survive_the_file(tmp_path: Path) -> None:
    response = Response(
        id="a/1", source="s", turn=1, seed=3, temperature=0.7, prompt_ids=(1, 2), response_ids=(3, 4, 5)
    )
    write_responses(tmp_path / "x.jsonl.gz", [response, replace(response, turn=0)])
    assert read_responses(tmp_path / "x.jsonl.gz") == [response, replace(response, turn=0)]


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"target": "a", "max_new": 1})
    with pytest.raises(TrainingError, match="another max_new"):
        write_manifest(tmp_path, {"target": "a", "max_new": 2})


def test_answers_of_another_target_are_refused(material: Material, train_config: TrainConfig) -> None:
    other = replace(material.target, revision="0" * 16)
    with pytest.raises(TrainingError, match="made by target"):
        Trainer(other, train_config)


def test_states_of_other_layers_are_refused(material: Material, train_config: TrainConfig) -> None:
    options = replace(train_config.drafter, target_layer_ids=(TAPS[0], TAPS[1] - 1))
    with pytest.raises(TrainingError, match=r"states of layers \[0, 2\]"):
        Trainer(material.target, replace(train_config, drafter=options))
