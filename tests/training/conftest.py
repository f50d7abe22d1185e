"""What the trainer's tests share: a tiny trained target and its answers, made once."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dflash_training.generate import GenerateConfig
from dflash_training.losses import LossConfig
from dflash_training.optimisers import OptimiserConfig
from dflash_training.prompts import PromptSource
from dflash_training.responses import ResponsesConfig, make_responses
from dflash_training.shape import DrafterOptions
from dflash_training.target import Target, load_target
from dflash_training.train import TrainConfig
from tests.models.byte_tokenizer import MASK_TOKEN_ID
from tests.training.quick_target import make_quick_target, write_prompts

TAPS = (0, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The target's folder, the loaded target, its answers, and the plain transformers model."""

    folder: Path
    target: Target
    answers: Path
    plain: PreTrainedModel


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    root = tmp_path_factory.mktemp("training")
    folder = make_quick_target(root / "target")
    target = load_target(folder, dtype=torch.float32, device=torch.device("cpu"))
    config = ResponsesConfig(
        out=root / "answers",
        prompts=(PromptSource(path=write_prompts(root / "prompts.jsonl", 64, seed=1)),),
        generate=GenerateConfig(slots=12, max_prompt=200, max_new=64, refill=2, target_layer_ids=TAPS),
        shard_size=16,
    )
    make_responses(target, config)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Material(folder=folder, target=target, answers=config.out, plain=plain.eval())


@pytest.fixture
def train_config(material: Material, tmp_path: Path) -> TrainConfig:
    """A small run in fp32."""
    return TrainConfig(
        data=(material.answers,),
        out=tmp_path / "run",
        drafter=DrafterOptions(num_hidden_layers=2, target_layer_ids=TAPS, mask_token_id=MASK_TOKEN_ID),
        loss=LossConfig(),
        optimiser=OptimiserConfig(learning_rate=3e-3, ema=0.9),
        steps=6,
        batch_size=4,
        anchors=6,
        validation=4,
        dtype=torch.float32,
    )
