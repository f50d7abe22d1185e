"""The model card that goes with an exported drafter."""

import json
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from dflash_training.report import Report
from dflash_training.shape import DrafterShape
from dflash_training.store import Store
from dflash_training.target import Target
from dflash_training.train import TrainConfig


def write_card(target: Target, config: TrainConfig, shape: DrafterShape, report: Report, out: Path) -> None:
    """Write `README.md`, and copy `curve.png` beside it: recipe, data, seed and simulated acceptance."""
    curve = config.out / "curve.png"
    if curve.is_file():
        shutil.copyfile(curve, out / "curve.png")
    text = "\n\n".join(
        [
            f"# DFlash drafter for {target.name}",
            f"Target weights: sha256 begins `{target.revision}` (names and bytes of the safetensors files). "
            f"z-lab format, bf16: {shape.num_hidden_layers} layers, block {shape.block_size}, "
            f"taps {list(shape.target_layer_ids)}, mask token {shape.mask_token_id}.",
            "## Simulated acceptance\n\n" + _acceptance(report),
            "## Data\n\n" + _data(config),
            f"## Recipe\n\nStep {report.step}, {report.seconds:.0f} s of training.\n\n```json\n"
            + json.dumps(_recipe(config), indent=1)
            + "\n```",
            *(["![curve](curve.png)"] if curve.is_file() else []),
        ]
    )
    (out / "README.md").write_text(text + "\n", encoding="utf-8")


def _acceptance(report: Report) -> str:
    reached = ", ".join(f"{share:.2f}" for share in report.by_position)
    rows = "\n".join(f"| {name} | {value:.2f} |" for name, value in report.by_source.items())
    return (
        f"Mean acceptance length {report.acceptance_length:.2f} on answers held back by prompt, walked as the "
        f"decoding loop does. Share of passes that accept at least 1, 2, … drafted tokens: {reached}.\n\n"
        f"| prompts | acceptance length |\n|---|---|\n{rows}"
    )


def _data(config: TrainConfig) -> str:
    tokens: Counter[str] = Counter()
    for example in Store(config.data).examples:
        tokens[example.response.source] += len(example.response.response_ids)
    rows = "\n".join(f"| {source} | {count:,} |" for source, count in sorted(tokens.items()))
    return f"The target's own answers, {tokens.total():,} tokens.\n\n| prompts | response tokens |\n|---|---|\n{rows}"


def _recipe(config: TrainConfig) -> dict[str, object]:
    places = {"data", "validation_data", "out", "init"}
    recipe = {name: value for name, value in asdict(config).items() if name not in places}
    return {name: value if isinstance(value, dict) else str(value) for name, value in recipe.items()} | {
        "continued_from": config.init.name if config.init else None
    }
