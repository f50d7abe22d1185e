"""`dflash-train`: train a DFlash drafter for your own target, stage by stage or all at once."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dflash_training.errors import TrainingError
from dflash_training.features import FeaturesConfig, make_features
from dflash_training.generate import GenerateConfig
from dflash_training.losses import LossConfig
from dflash_training.optimisers import OptimiserConfig
from dflash_training.parts import join_folder, split_folder
from dflash_training.pipeline import (
    gpu_preset,
    open_target,
    rehearsal,
    run_pipeline,
    train_and_export,
)
from dflash_training.prompts import parse_source
from dflash_training.report import Report
from dflash_training.responses import OnAnswer, ResponsesConfig, make_responses
from dflash_training.shape import DrafterOptions, drafter_shape
from dflash_training.target import Target
from dflash_training.train import TrainConfig

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

TargetFolder = Annotated[Path, typer.Argument(help="Hugging Face folder of the target, whole or in parts.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="bfloat16 or float32.")]
LayerIds = Annotated[
    list[int] | None,
    typer.Option(help="Layers whose outputs the drafter reads; repeat. Default: five, spread evenly."),
]
Prompts = Annotated[
    list[str], typer.Option("--prompts", help='JSONL of {"id", "turns"}; FILE:COUNT for a part. Repeat.')
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write into; a run found there goes on.")]


def _open(folder: Path, work: Path, device: str, precision: str) -> Target:
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}.get(precision)
    if dtype is None:
        raise TrainingError(f"--precision {precision}: give bfloat16 or float32")
    return open_target(folder, work, dtype=dtype, device=torch.device(device))


def _taps(target: Target, layer_ids: list[int] | None) -> tuple[int, ...]:
    """The layers asked for, or those that a drafter reads by default. Raises TrainingError."""
    options = DrafterOptions(target_layer_ids=tuple(layer_ids) if layer_ids else None)
    return drafter_shape(target.model.config, options).target_layer_ids


class _Bars:
    """Progress with the time left; rich comes with typer, which comes with transformers."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, TextColumn("left"), TimeRemainingColumn())
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Bars":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def _task(self, name: str) -> TaskID:
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=None)
        return self.tasks[name]

    def on_answer(self, total: int | None) -> OnAnswer:
        """Counts response tokens."""
        return lambda response: self.progress.update(
            self._task("responses"), total=total, advance=len(response.response_ids)
        )

    def on_shard(self, done: int, total: int) -> None:
        """Counts shards of features."""
        self.progress.update(self._task("features"), total=total, completed=done)

    def on_step(self, progress: float, step: int, cross_entropy: float) -> None:
        """Shows the schedule's progress and the loss."""
        text = f"train: step {step}, loss {cross_entropy:.3f}"
        self.progress.update(self._task("train"), total=1.0, completed=progress, description=text)


def _say(report: Report, out: Path) -> None:
    typer.echo(f"{out}: simulated acceptance length {report.acceptance_length:.2f} at step {report.step}")


@app.command()
def responses(
    target: TargetFolder,
    prompts: Prompts,
    out: Out,
    samples: Annotated[int, typer.Option(help="Sampled answers beside the greedy one.")] = 0,
    temperature: Annotated[float, typer.Option(help="Of the sampled answers.")] = 0.7,
    max_new: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 256,
    max_tokens: Annotated[int | None, typer.Option(help="Stop after so many tokens.")] = None,
    skip: Annotated[
        list[Path] | None, typer.Option(help="Files of answers (*.jsonl.gz): not asked again. Repeat.")
    ] = None,
    slots: Annotated[int, typer.Option(help="Answers written at once.")] = 128,
    layer_ids: LayerIds = None,
    seed: int = 0,
    device: Device = "cpu",
    precision: Precision = "bfloat16",
) -> None:
    """The target answers the prompts; its hidden states are kept for training."""
    loaded = _open(target, out, device, precision)
    taps = _taps(loaded, layer_ids)
    config = ResponsesConfig(
        out=out,
        prompts=tuple(map(parse_source, prompts)),
        samples=samples,
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        skip=tuple(skip or ()),
        generate=GenerateConfig(slots=slots, max_new=max_new, target_layer_ids=taps),
    )
    with _Bars() as bars:
        made = make_responses(loaded, config, on_answer=bars.on_answer(max_tokens))
    typer.echo(f"{out}: {made:,} response tokens")


@app.command()
def features(
    target: TargetFolder,
    answers: Annotated[list[Path], typer.Option(help="Files of answers (*.jsonl.gz). Repeat.")],
    out: Out,
    layer_ids: LayerIds = None,
    device: Device = "cpu",
    precision: Precision = "bfloat16",
) -> None:
    """Hidden states of answers made elsewhere, or of other layers."""
    loaded = _open(target, out, device, precision)
    taps = _taps(loaded, layer_ids)
    config = FeaturesConfig(answers=tuple(answers), out=out, target_layer_ids=taps)
    with _Bars() as bars:
        count = make_features(loaded, config, on_shard=bars.on_shard)
    typer.echo(f"{out}: {count} answers")


@app.command()
def train(
    target: TargetFolder,
    data: Annotated[list[Path], typer.Option(help="Folders that `responses` or `features` wrote. Repeat.")],
    work: Annotated[Path, typer.Option(help="Checkpoints, metrics and curve; a run found there goes on.")],
    out: Annotated[Path, typer.Option(help="Where the finished drafter goes.")],
    init: Annotated[Path | None, typer.Option(help="Go on from this z-lab drafter.")] = None,
    layers: Annotated[int, typer.Option(help="Drafter layers.")] = 4,
    block_size: int = 8,
    block_sizes: Annotated[
        list[int] | None, typer.Option(help="Lengths of the blocks trained on, step by step in turn. Repeat.")
    ] = None,
    mask_token_id: Annotated[int, typer.Option(help="A token that the target never writes.")] = 4,
    layer_ids: LayerIds = None,
    sliding_window: Annotated[int, typer.Option(help="Context rows that a row sees; 0: all.")] = 0,
    steps: int = 2000,
    minutes: Annotated[float | None, typer.Option(help="Shorten the schedule to end by then.")] = None,
    batch_size: int = 8,
    anchors: Annotated[int, typer.Option(help="Blocks a sequence, drawn anew every step.")] = 32,
    learning_rate: float = 1.2e-3,
    muon: Annotated[bool, typer.Option(help="Muon for the matrices; costly on a CPU.")] = False,
    weighting: Annotated[str, typer.Option(help="dpace or exponential.")] = "dpace",
    distill: Annotated[float, typer.Option(help="Share of the target's distribution in the loss.")] = 0.5,
    regression: Annotated[float, typer.Option(help="Weight of the target's hidden state.")] = 1.0,
    reveal: Annotated[float, typer.Option(help="Share of blocks with some rows shown.")] = 0.0,
    loss_vocab: Annotated[int, typer.Option(help="Tokens that the loss scores.")] = 8192,
    validation: Annotated[int, typer.Option(help="Prompts held back.")] = 48,
    validation_data: Annotated[
        list[Path] | None, typer.Option(help="Folders of answers to hold back, in place of a part of --data. Repeat.")
    ] = None,
    ema: Annotated[float, typer.Option(help="Decay of the weights' moving average; 0: none.")] = 0.998,
    recompute: Annotated[bool, typer.Option(help="Make the states anew for every batch.")] = False,
    random_start: Annotated[bool, typer.Option(help="Don't copy the target's last layers.")] = False,
    seed: int = 0,
    device: Device = "cpu",
    precision: Precision = "bfloat16",
) -> None:
    """Train on the answers, then write the drafter in z-lab's format."""
    if weighting not in ("dpace", "exponential"):
        raise TrainingError(f"--weighting {weighting}: give dpace or exponential")
    loaded = _open(target, work, device, precision)
    config = TrainConfig(
        data=tuple(data), out=work, init=init, random_start=random_start, steps=steps,
        max_seconds=minutes * 60 if minutes else None, batch_size=batch_size, anchors=anchors,
        loss_vocab=loss_vocab, reveal=reveal, validation=validation,
        validation_data=tuple(validation_data or ()), block_sizes=tuple(block_sizes or ()),
        recompute=recompute, seed=seed, dtype=loaded.dtype,
        drafter=DrafterOptions(
            num_hidden_layers=layers, block_size=block_size, mask_token_id=mask_token_id,
            target_layer_ids=tuple(layer_ids) if layer_ids else None, sliding_window=sliding_window,
        ),
        loss=LossConfig(
            weighting="dpace" if weighting == "dpace" else "exponential", distill=distill, regression=regression
        ),
        optimiser=OptimiserConfig(name="muon" if muon else "adamw", learning_rate=learning_rate, ema=ema),
    )  # fmt: skip
    with _Bars() as bars:
        report = train_and_export(loaded, config, out, on_step=bars.on_step)
    _say(report, out)


@app.command("demo-gpu")
def demo_gpu(
    target: TargetFolder,
    prompts: Prompts,
    work: Annotated[Path, typer.Option(help="Answers, checkpoints, curve.")],
    out: Annotated[Path, typer.Option(help="Where the finished drafter goes.")],
    rehearse: Annotated[bool, typer.Option(help="Small numbers, on whatever device is there.")] = False,
) -> None:
    """Everything in under seven minutes on one large GPU: answers, training, export."""
    config = gpu_preset(target, tuple(map(parse_source, prompts)), work, out)
    if rehearse:
        config = rehearsal(config, tokens=600, steps=4)
    elif not torch.cuda.is_available():
        raise TrainingError("no CUDA device here; --rehearse runs the same path with small numbers")
    with _Bars() as bars:
        on_answer = bars.on_answer(config.responses.max_tokens)
        report = run_pipeline(config, on_answer=on_answer, on_step=bars.on_step)
    _say(report, out)


@app.command()
def split(folder: TargetFolder, out: Out) -> None:
    """Cut a model folder into parts of at most 16 MiB."""
    typer.echo(f"{out}: {split_folder(folder, out)} parts")


@app.command()
def join(parts: Annotated[Path, typer.Argument(help="Folder that `split` wrote.")], out: Out) -> None:
    """Put a split folder together again, checked by sha256."""
    join_folder(parts, out)
