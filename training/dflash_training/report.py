"""What a training run says of itself: losses and simulated acceptance, as numbers and as a picture."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_training.acceptance import Tally
from dflash_training.checkpoint import RunState
from dflash_training.losses import Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One evaluation: simulated acceptance length over the held-back answers, by position and source."""

    step: int
    seconds: float
    loss: float
    regression: float
    acceptance_length: float
    by_position: list[float]
    by_source: dict[str, float]


class Recent:
    """Mean losses since the last evaluation."""

    def __init__(self) -> None:
        self.count, self.cross_entropy, self.regression = 0, 0.0, 0.0

    def add(self, losses: Losses) -> None:
        """Take in one step's losses."""
        self.count += 1
        self.cross_entropy += (float(losses.cross_entropy) - self.cross_entropy) / self.count
        self.regression += (float(losses.regression) - self.regression) / self.count


def make_report(state: RunState, recent: Recent, tallies: dict[str, Tally]) -> Report:
    """A report of the run as it stands."""
    return Report(
        step=state.step,
        seconds=round(state.seconds, 1),
        loss=round(recent.cross_entropy, 4),
        regression=round(recent.regression, 4),
        acceptance_length=round(tallies["all"].acceptance_length, 4),
        by_position=tallies["all"].by_position,
        by_source={name: round(tally.acceptance_length, 3) for name, tally in sorted(tallies.items())},
    )


def record(report: Report, out: Path) -> None:
    """Add a report to `metrics.jsonl` and draw `curve.png` anew."""
    path = out / "metrics.jsonl"
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(report)) + "\n")
    draw_curve(path, out / "curve.png")


def draw_curve(metrics: Path, out: Path) -> None:
    """Draw `metrics.jsonl` as a PNG. Does nothing where matplotlib is not installed: a GPU box may lack it."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, [row["acceptance_length"] for row in rows], "o-", color="tab:blue")
    axes.set(xlabel="step", ylabel="simulated acceptance length")
    axes.yaxis.label.set_color("tab:blue")
    right = axes.twinx()
    right.plot(steps, [row["loss"] for row in rows], color="tab:orange")
    right.set_ylabel("training cross-entropy", color="tab:orange")
    figure.savefig(out, dpi=110)
