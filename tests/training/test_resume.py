"""A run that was stopped and went on gives, bit for bit, what an uninterrupted one gives."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dflash_training.errors import TrainingError
from dflash_training.optimisers import OptimiserConfig
from dflash_training.train import TrainConfig, Trainer
from tests.training.conftest import Material


class StoppedError(Exception):
    """The power went out."""


def weights(material: Material, config: TrainConfig) -> dict[str, Tensor]:
    trainer = Trainer(material.target, config)
    trainer.run()
    average = {f"average.{name}": tensor for name, tensor in trainer.state.average.items()}
    return average | trainer.drafter.state_dict()


def stop_at(step: int) -> "object":
    def stop(_progress: float, at: int, _loss: float) -> None:
        if at == step:
            raise StoppedError

    return stop


def interrupted(material: Material, config: TrainConfig) -> dict[str, Tensor]:
    """Checkpoint at step 3, lost at step 5, taken up again."""
    config = replace(config, save_every=3)
    with pytest.raises(StoppedError):
        Trainer(material.target, config).run(on_step=stop_at(5))  # type: ignore[arg-type]
    return weights(material, config)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_resumed_equals_uninterrupted(material: Material, train_config: TrainConfig, name: str) -> None:
    optimiser = OptimiserConfig(name="muon" if name == "muon" else "adamw", learning_rate=3e-3)
    config = replace(train_config, optimiser=optimiser, reveal=0.3, noise=0.05, block_sizes=(4, 8))
    whole = weights(material, replace(config, out=config.out / "whole"))
    assert same(whole, interrupted(material, replace(config, out=config.out / "parts")))


@pytest.mark.parametrize("forgotten", ["optimisers", "step", "average", "model"])
def test_anything_forgotten_in_a_checkpoint_is_seen(
    material: Material, train_config: TrainConfig, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    whole = weights(material, replace(train_config, out=train_config.out / "whole"))
    original = torch.load

    def lossy(*args: object, **kwargs: object) -> dict[str, object]:
        saved = original(*args, **kwargs)  # type: ignore[arg-type]
        fresh = Trainer(material.target, train_config).state
        saved[forgotten] = {
            "optimisers": [optimiser.state_dict() for optimiser in fresh.optimisers],
            "step": 0,
            "average": fresh.average,
            "model": fresh.model.state_dict(),
        }[forgotten]
        return dict(saved)

    monkeypatch.setattr(torch, "load", lossy)
    assert not same(whole, interrupted(material, replace(train_config, out=train_config.out / "parts")))


def test_a_run_with_other_settings_is_not_gone_on_with(material: Material, train_config: TrainConfig) -> None:
    Trainer(material.target, train_config).run()
    with pytest.raises(TrainingError, match="another anchors"):
        Trainer(material.target, replace(train_config, anchors=7)).run()
