"""`dflash-train` on a tiny target, by its commands: the drafter it writes drafts well in the real loop."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_training.cli import app
from dflash_training.errors import TrainingError
from dflash_training.parts import split_folder
from tests.models.byte_tokenizer import END_OF_TURN_ID, MASK_TOKEN_ID
from tests.reference.reference_drafter import ReferenceDrafter
from tests.reference.reference_loop import plain_greedy, reference_loop
from tests.training.conftest import TAPS, Material
from tests.training.quick_target import write_prompts

TAP_OPTIONS = [word for tap in TAPS for word in ("--layer-ids", str(tap))]


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def loop_acceptance(material: Material, drafter: Path, prompts: list[list[int]]) -> float:
    """Tokens a verifying pass through the reference loop, whose tokens must be the target's own."""
    reference = ReferenceDrafter.from_folder(drafter, material.plain)
    lengths: list[int] = []
    for prompt in prompts:
        result = reference_loop(material.plain, reference, prompt, 60, 8, {END_OF_TURN_ID})
        assert result.token_ids == plain_greedy(material.plain, prompt, 60, {END_OF_TURN_ID})
        lengths += result.acceptance_lengths
    return sum(lengths) / len(lengths)


def held_back(answers: Path, count: int) -> list[list[int]]:
    """Prompts as the target reads them, from answers to questions that training did not see."""
    rows = []
    for path in sorted(answers.glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as stream:
            rows += [json.loads(line)["prompt_ids"] for line in stream]
    return rows[:count]


def test_commands_make_a_drafter_that_is_accepted(material: Material, tmp_path: Path) -> None:
    drafter, work = tmp_path / "drafter", tmp_path / "run"
    common = ["--precision", "float32", *TAP_OPTIONS]
    options = ["--layers", 1, "--mask-token-id", MASK_TOKEN_ID, "--anchors", 16, "--validation", 6]
    output = run(
        "train", material.folder, "--data", material.answers, "--work", work, "--out", drafter, "--steps", 250,
        "--learning-rate", 8e-3, "--loss-vocab", 260, *options, *common,
    )  # fmt: skip
    assert "simulated acceptance length" in output
    assert (work / "curve.png").read_bytes().startswith(b"\x89PNG")
    simulated = json.loads((work / "metrics.jsonl").read_text().splitlines()[-1])["acceptance_length"]
    prompts = write_prompts(tmp_path / "new.jsonl", 8, seed=99)
    run("responses", material.folder, "--prompts", prompts, "--out", tmp_path / "new", "--slots", 4, *common)
    measured = loop_acceptance(material, drafter, held_back(tmp_path / "new", 8))
    assert simulated > 1.6  # a drafter that is never right: 1.0
    assert measured > 1.6
    assert "Simulated acceptance" in (drafter / "README.md").read_text()
    counts = json.loads((drafter / "token_counts.json").read_text())["counts"]
    assert counts == sorted(counts, reverse=True)
    assert min(counts) >= 1


def test_an_interrupted_responses_stage_goes_on(material: Material, tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 6, seed=3), tmp_path / "answers"
    words = ["responses", material.folder, "--prompts", prompts, "--out", out, "--precision", "float32",
             "--slots", 3, *TAP_OPTIONS]  # fmt: skip
    run(*words, "--max-tokens", 60)
    before = held_back(out, 99)
    assert 0 < len(before) < 9
    run(*words)
    after = held_back(out, 99)
    assert len(after) == 9  # six prompts, three of them with a second turn
    assert len({tuple(prompt) for prompt in after}) == len(
        {tuple(prompt) for prompt in before} | set(map(tuple, after))
    )
    assert after[: len(before)] == before


def test_the_gpu_command_rehearses_from_parts(material: Material, tmp_path: Path) -> None:
    split_folder(material.folder, tmp_path / "parts", size=200_000)
    prompts = write_prompts(tmp_path / "prompts.jsonl", 24, seed=5)
    run(
        "demo-gpu", tmp_path / "parts", "--prompts", prompts, "--work", tmp_path / "work", "--out", tmp_path / "out",
        "--rehearse",
    )  # fmt: skip
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    ReferenceDrafter.from_folder(tmp_path / "out", material.plain)  # strict: every tensor, no other


def test_a_wrong_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no \*.safetensors file; give a Hugging Face folder"):
        CliRunner().invoke(
            app, ["responses", str(tmp_path), "--prompts", "x", "--out", str(tmp_path)], catch_exceptions=False
        )
