"""Stage `train`: the drafter learns the target's answers. The same code on CPU and GPU."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from dflash_training.acceptance import all_blocks, simulate
from dflash_training.batches import (
    Batch,
    States,
    epoch_order,
    load_batch,
    recomputed_states,
    split_by_prompt,
    stored_states,
    without_prompts,
)
from dflash_training.blocks import Blocks, cut_blocks, draw_anchors, draw_reveals
from dflash_training.checkpoint import RunState, load_checkpoint, save_checkpoint
from dflash_training.drafter import Drafter
from dflash_training.errors import TrainingError
from dflash_training.export import load_drafter
from dflash_training.initialise import measure_tap_scale, start_from_target, start_random
from dflash_training.losses import LossConfig, Losses, block_losses
from dflash_training.optimisers import (
    OptimiserConfig,
    make_optimisers,
    rate_factor,
    set_rates,
    update_average,
)
from dflash_training.report import Recent, Report, make_report, record
from dflash_training.shape import DrafterOptions, DrafterShape, drafter_shape
from dflash_training.store import Example, Store
from dflash_training.target import Target
from dflash_training.vocabulary import loss_vocabulary

EVALUATED_ANCHORS = 48
"""Blocks in one pass of an evaluation: bounds its attention mask."""


OnStep = Callable[[float, int, float], None]
"""Called after every step with the progress 0..1, the step and the mean cross-entropy of late."""


def ignore_step(_progress: float, _step: int, _cross_entropy: float) -> None:
    """The default `OnStep`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """`data`: stores of answers. `init`: a z-lab drafter folder to go on from. `anchors`: blocks a sequence.
    `block_sizes`: lengths of the blocks, step by step in turn (shorter ones leave room for more anchors), so
    that one drafter serves several; none: its own alone.
    `reveal`: share of blocks with some rows shown. `noise`: uniform noise on the taps, relative to their
    scale. `validation`: prompts held back, of `validation_data` if given (never trained on), else of `data`.
    `recompute`: the target makes the states anew for every batch. `max_seconds`: the schedule ends by then,
    also when fewer than `steps` steps fit.
    """

    data: tuple[Path, ...]
    out: Path
    drafter: DrafterOptions = field(default_factory=DrafterOptions)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    init: Path | None = None
    random_start: bool = False
    steps: int = 2000
    max_seconds: float | None = None
    batch_size: int = 8
    anchors: int = 32
    block_sizes: tuple[int, ...] = ()
    max_length: int = 576
    loss_vocab: int = 8192
    reveal: float = 0.0
    noise: float = 0.0
    validation: int = 48
    validation_data: tuple[Path, ...] = ()
    evaluate_every: int = 200
    save_every: int = 100
    dtype: torch.dtype = torch.bfloat16
    compile: bool = False
    recompute: bool = False
    seed: int = 0

    def identity(self) -> dict[str, object]:
        """What must be the same for a run to go on: all but where things lie and how often they are saved."""
        loose = {"data", "validation_data", "out", "save_every", "evaluate_every", "compile", "init", "max_seconds"}
        return {name: str(value) for name, value in asdict(self).items() if name not in loose}


class Trainer:
    """A training run. `run` goes on from the checkpoint in `config.out`, if there is one."""

    def __init__(self, target: Target, config: TrainConfig) -> None:
        self.config, self.device = config, target.device
        self.shape = drafter_shape(target.model.config, config.drafter)
        store = Store(config.data)
        check_data(store, target, self.shape, config)
        self.train_set, valid = self._split(store, target)
        if not self.train_set or not valid:
            raise TrainingError(f"{config.data}: {len(store.examples)} answers are too few to train on")
        self.states = _states(store, target, self.shape, config)
        self.valid = [self._load(self.states, [example]) for example in valid]
        self.vocabulary = loss_vocabulary(self.train_set, config.loss_vocab, self.shape.vocab_size)
        self.embedding = target.embedding
        self.head = target.head[self.vocabulary.ids.to(self.device)]
        self.drafter = self._start(target).to(self.device)
        self.state = RunState(
            self.drafter,
            make_optimisers(self.drafter, config.optimiser),
            {name: p.detach().clone() for name, p in self.drafter.named_parameters()},
        )
        self.forward = torch.compile(self.drafter, dynamic=True) if config.compile else self.drafter
        self.epoch, self.order = -1, [[self.train_set[0]]]

    def _split(self, store: Store, target: Target) -> tuple[list[Example], list[Example]]:
        """Training and validation answers, of different prompts."""
        if not self.config.validation_data:
            return split_by_prompt(store.examples, self.config.validation, self.config.seed)
        held = Store(self.config.validation_data)
        check_data(held, target, self.shape, self.config)
        return without_prompts(store.examples, held.examples), held.examples[: self.config.validation]

    def _start(self, target: Target) -> Drafter:
        if self.config.init:
            return load_drafter(self.config.init, self.shape)
        drafter = Drafter(self.shape)
        sample = epoch_order(self.train_set, 64, self.config.seed)[0]
        drafter.tap_scale.copy_(measure_tap_scale(states[:, :-1] for states in self.states(sample)))
        if self.config.random_start:
            start_random(drafter, self.config.seed)
        else:
            start_from_target(drafter, target)
        return drafter

    @property
    def autocast(self) -> torch.autocast:
        """The precision that products run in; norms, sums and losses stay in fp32."""
        return torch.autocast(self.device.type, self.config.dtype, enabled=self.config.dtype != torch.float32)

    def run(self, *, on_step: OnStep = ignore_step) -> Report:
        """Train to `config.steps`; checkpoints, `metrics.jsonl` and `curve.png` appear in `config.out`."""
        self.config.out.mkdir(parents=True, exist_ok=True)
        checkpoint = self.config.out / "checkpoint.pt"
        if checkpoint.is_file():
            load_checkpoint(checkpoint, self.state, self.config.identity())
        clock, recent, report = time.monotonic() - self.state.seconds, Recent(), None
        with ThreadPoolExecutor(1) as reader:
            pending = reader.submit(self.batch, self.state.step)
            while self.progress < 1:
                batch = pending.result()
                pending = reader.submit(self.batch, self.state.step + 1)
                recent.add(self.step(batch))
                self.state.seconds = time.monotonic() - clock
                on_step(self.progress, self.state.step, recent.cross_entropy)
                if self._due(self.config.evaluate_every):
                    report, recent = self.evaluate(recent), Recent()
                    record(report, self.config.out)
                if self._due(self.config.save_every):
                    save_checkpoint(checkpoint, self.state, self.config.identity())
        return report or self.evaluate(recent)

    def _due(self, every: int) -> bool:
        return self.progress >= 1 or self.state.step % every == 0

    @property
    def progress(self) -> float:
        """How much of the schedule is done: by steps, or by time where that ends first."""
        by_time = self.state.seconds / self.config.max_seconds if self.config.max_seconds else 0.0
        return max(self.state.step / self.config.steps, by_time)

    def batch(self, step: int) -> Batch:
        """The batch of a step: a function of seed and step alone."""
        per_epoch = -(-len(self.train_set) // self.config.batch_size)
        epoch, index = divmod(step, per_epoch)
        if epoch != self.epoch:
            order = epoch_order(self.train_set, self.config.batch_size, self.config.seed + 7919 * epoch)
            self.epoch, self.order = epoch, order
        return self._load(self.states, self.order[index])

    def _load(self, states: States, examples: list[Example]) -> Batch:
        return load_batch(states, examples, self.config.max_length, self.device)

    def blocks(self, batch: Batch, step: int) -> Blocks:
        """Random anchors and reveals of a step, anew every time: a function of seed and step alone."""
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        sizes = self.config.block_sizes or (self.shape.block_size,)
        block = sizes[step % len(sizes)]
        count = self.config.anchors * self.shape.block_size // block
        anchors = draw_anchors(batch.prompts, batch.lengths - 2, count, generator)
        revealed = draw_reveals(anchors, block, self.config.reveal, generator)
        return cut_blocks(
            batch.tokens,
            batch.lengths,
            anchors.to(self.device),
            revealed.to(self.device),
            self.shape,
            batch.taps.shape[1],
        )

    def step(self, batch: Batch) -> Losses:
        """One update of the weights."""
        progress = self.progress + 1 / self.config.steps
        set_rates(self.state.optimisers, rate_factor(progress, self.config.optimiser))
        losses = self.losses(self._noisy(batch), self.blocks(batch, self.state.step))
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.config.optimiser.clip)
        for optimiser in self.state.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        update_average(self.state.average, self.drafter, self.config.optimiser.ema, self.state.step)
        self.state.step += 1
        return losses

    def _noisy(self, batch: Batch) -> Batch:
        if not self.config.noise:
            return batch
        generator = torch.Generator(self.device).manual_seed(self.config.seed + self.state.step)
        noise = torch.rand(batch.taps.shape, generator=generator, device=self.device) * 2 - 1
        scale = self.config.noise / self.drafter.tap_scale[:, None]
        return replace(batch, taps=batch.taps.float() + noise * scale)

    def hidden(self, batch: Batch, blocks: Blocks) -> Tensor:
        """The drafter's normed states, [B, A*K, H]."""
        with self.autocast:
            hidden: Tensor = self.forward(batch.taps.float(), self.embedding[blocks.tokens], blocks)
        return hidden

    def losses(self, batch: Batch, blocks: Blocks) -> Losses:
        """Loss of one batch's blocks; the label x[p] is predicted by the target's state at p - 1."""
        hidden, scored = self.hidden(batch, blocks), blocks.scored
        rows = torch.arange(len(scored), device=self.device)[:, None].expand_as(scored)
        return block_losses(
            hidden[scored],
            batch.last[rows[scored], blocks.positions[scored] - 1].float(),
            self.head,
            self.vocabulary.place.to(self.device)[blocks.labels[scored]],
            scored.view(-1, blocks.block_size),
            self.config.loss,
            self.autocast,
        )

    def predict(self, batch: Batch, anchors: Tensor) -> Tensor:
        """Drafted tokens of one answer at some anchors, [A, K], with nothing of the block revealed."""
        parts = []
        for part in torch.split(anchors, EVALUATED_ANCHORS):
            hidden = self.hidden(batch, all_blocks(batch, part, self.shape))
            with self.autocast:
                best = (hidden[0] @ self.head.T).argmax(-1)
            parts.append(self.vocabulary.ids.to(self.device)[best].view(len(part), -1))
        return torch.cat(parts)

    def evaluate(self, recent: Recent) -> Report:
        """Simulated acceptance of the averaged weights on the held-back answers."""
        live = {name: p.detach().clone() for name, p in self.drafter.named_parameters()}
        self.drafter.load_state_dict(self.state.average, strict=False)
        tallies = simulate(self.predict, self.valid, self.shape.block_size)
        self.drafter.load_state_dict(live, strict=False)
        return make_report(self.state, recent, tallies)


def check_data(store: Store, target: Target, shape: DrafterShape, config: TrainConfig) -> None:
    """Refuse answers of another target, or states of other layers."""
    for manifest, folder in zip(store.manifests, store.folders, strict=True):
        if manifest["target_revision"] != target.revision:
            raise TrainingError(
                f"{folder}: made by target {manifest['target_revision']}, not by {target.revision}; "
                "run `dflash-train responses` with this target"
            )
        if not config.recompute and manifest["target_layer_ids"] != list(shape.target_layer_ids):
            raise TrainingError(
                f"{folder}: holds the states of layers {manifest['target_layer_ids']}, "
                f"not of {list(shape.target_layer_ids)}; run `dflash-train features`, or train with --recompute"
            )


def _states(store: Store, target: Target, shape: DrafterShape, config: TrainConfig) -> States:
    if config.recompute:
        return recomputed_states(target, shape.target_layer_ids, config.batch_size * config.max_length)
    return stored_states(store)


def train_drafter(target: Target, config: TrainConfig, *, on_step: OnStep = ignore_step) -> Report:
    """Train a drafter for the target on the answers in `config.data`."""
    return Trainer(target, config).run(on_step=on_step)
