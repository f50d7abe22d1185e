"""All stages in a row, with settings for a laptop and for one large GPU."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dflash_training.card import write_card
from dflash_training.export import export_drafter
from dflash_training.generate import GenerateConfig
from dflash_training.optimisers import OptimiserConfig
from dflash_training.parts import is_split, join_folder
from dflash_training.prompts import PromptSource
from dflash_training.report import Report
from dflash_training.responses import OnAnswer, ResponsesConfig, ignore_answer, make_responses
from dflash_training.shape import drafter_shape
from dflash_training.target import Target, load_target
from dflash_training.train import OnStep, TrainConfig, Trainer, ignore_step
from dflash_training.vocabulary import write_token_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """A target folder (whole or in parts), a work folder for all stages, and where the drafter goes."""

    target: Path
    work: Path
    out: Path
    responses: ResponsesConfig
    train: TrainConfig
    device: torch.device
    dtype: torch.dtype


def gpu_preset(target: Path, prompts: tuple[PromptSource, ...], work: Path, out: Path) -> PipelineConfig:
    """Under seven minutes on one large GPU: 100 s of answers, 240 s of training, states recomputed."""
    answers = work / "answers"
    generate = GenerateConfig(slots=1024, refill=64)
    return PipelineConfig(
        target=target,
        work=work,
        out=out,
        responses=ResponsesConfig(
            out=answers, prompts=prompts, generate=generate, samples=1, max_tokens=4_000_000, max_seconds=100
        ),
        train=TrainConfig(
            data=(answers,),
            out=work / "run",
            recompute=True,
            steps=20_000,
            max_seconds=240,
            batch_size=32,
            anchors=64,
            validation=64,
            evaluate_every=1000,
            save_every=2000,
            loss_vocab=16_384,
            optimiser=OptimiserConfig(learning_rate=1e-3, ema=0.999),
        ),
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
    )


def rehearsal(preset: PipelineConfig, *, tokens: int, steps: int) -> PipelineConfig:
    """The same path with small numbers on whatever is there: finds what breaks before a GPU's minutes do."""
    generate = replace(preset.responses.generate, slots=16, refill=4, max_new=48)
    train = replace(
        preset.train,
        steps=steps,
        max_seconds=None,
        batch_size=4,
        anchors=8,
        validation=8,
        evaluate_every=steps,
        save_every=steps,
        loss_vocab=2048,
    )
    return replace(
        preset,
        responses=replace(preset.responses, generate=generate, max_tokens=tokens, max_seconds=None, shard_size=16),
        train=train,
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )


def open_target(folder: Path, work: Path, *, dtype: torch.dtype, device: torch.device) -> Target:
    """Load a target, joining its parts first where it comes in parts."""
    if is_split(folder):
        join_folder(folder, work / folder.name)
        folder = work / folder.name
    return load_target(folder, dtype=dtype, device=device)


def train_and_export(target: Target, config: TrainConfig, out: Path, *, on_step: OnStep = ignore_step) -> Report:
    """Train to the end of the schedule, then write the drafter with its card."""
    trainer = Trainer(target, config)
    report = trainer.run(on_step=on_step)
    export_drafter(trainer.state.average, trainer.drafter.tap_scale, trainer.shape, out)
    write_token_counts(trainer.train_set, out)
    write_card(target, config, trainer.shape, report, out)
    return report


def run_pipeline(
    config: PipelineConfig, *, on_answer: OnAnswer = ignore_answer, on_step: OnStep = ignore_step
) -> Report:
    """Answers, training and export; every stage goes on where an earlier run stopped."""
    target = open_target(config.target, config.work, dtype=config.dtype, device=config.device)
    drafter_shape(target.model.config, config.train.drafter)  # refuse a wrong shape before the long part
    make_responses(target, config.responses, on_answer=on_answer)
    return train_and_export(target, config.train, config.out, on_step=on_step)
