"""What the numbers inside of a pair are like on real prompts: the range of every tensor, and rows of products' inputs.

Both programs run in PyTorch as they were traced, in fp32: the target over each prompt, the drafter at a few anchors.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor

from dflash_engines.errors import CheckpointError
from dflash_engines.lowerings.quantized_weights import products
from dflash_export.precision.graph_in_torch import TorchGraph

DEFAULT = Path(__file__).with_name("calibration.jsonl")
FEWEST = 5  # prompts; ranges found on fewer are chance
LONGEST = 128  # tokens of a prompt that are used
ROWS = 64  # of a product's input that are kept
_ANCHORS = 3  # blocks that are drafted for each prompt
Tokens = Sequence[int]


@dataclass(slots=True, kw_only=True)
class Seen:
    """One product's input over all prompts."""

    largest: Tensor  # [rows of the weight] magnitude of each channel
    rows: Tensor  # [at most ROWS, rows of the weight] a sample


@dataclass(slots=True, kw_only=True)
class Observed:
    """One program over all prompts."""

    largest: dict[str, float] = field(default_factory=dict)  # tensor to magnitude; infinite where it wasn't finite
    inputs: dict[str, Seen] = field(default_factory=dict)  # product to its input


def read_prompts(path: Path) -> list[str]:
    """First turns of a JSONL file of {"turns": [text, …]}. Raises CheckpointError."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        prompts = [str(json.loads(line)["turns"][0]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as fault:
        raise CheckpointError(
            f'{path} is not a prompts file, a JSON object {{"turns": ["..."]}} a line: {fault!r}'
        ) from fault
    if len(prompts) < FEWEST:
        raise CheckpointError(f"{path} has {len(prompts)} prompts; calibration takes at least {FEWEST}")
    return prompts


def observe(
    models: Mapping[str, ir.Model], prompts: Iterable[Tokens], block_size: int, mask: int
) -> dict[str, Observed]:
    """Run `models` (target and draft, as traced) on the prompts."""
    graphs = {name: TorchGraph(model) for name, model in models.items()}
    watches = {name: _Watch(model) for name, model in models.items()}
    for prompt in prompts:
        tokens = torch.tensor([list(prompt[:LONGEST])])
        caches = _target(graphs["target"], watches["target"], tokens, block_size)
        for start in range(1, tokens.shape[1], max(1, tokens.shape[1] // _ANCHORS)):
            block = torch.full((1, block_size), mask)
            block[0, 0] = tokens[0, start]
            at = {"tokens": block, "start": torch.tensor([start]), "length": torch.tensor([start + block_size])}
            graphs["draft"].run(
                {n: v for n, v in (caches | at).items() if n in graphs["draft"].inputs}, watches["draft"]
            )
    return {name: watch.found for name, watch in watches.items()}


def _target(graph: TorchGraph, watch: "_Watch", tokens: Tensor, block_size: int) -> dict[str, Tensor]:
    """The drafter's caches after the prompt."""
    count = tokens.shape[1]
    at = {"tokens": tokens, "start": torch.tensor([0]), "length": torch.tensor([count]),
          "rows": torch.tensor([[count - 1]])}  # fmt: skip
    written = graph.run(at | graph.empty_caches(count + block_size), watch)
    return {name.removeprefix("new_"): value for name, value in written.items() if name.startswith("new_draft")}


class _Watch:
    """Told every tensor of one program."""

    def __init__(self, model: ir.Model) -> None:
        self.found = Observed()
        self.readers: dict[str, list[str]] = {}
        for node in products(model.graph, keep=()):
            assert node.inputs[0] is not None
            self.readers.setdefault(str(node.inputs[0].name), []).append(str(node.name))
        self.random = torch.Generator().manual_seed(0)

    def __call__(self, name: str, value: Tensor) -> None:
        largest = self.found.largest
        magnitude = float(value.abs().max()) if value.numel() else 0.0
        largest[name] = max(largest.get(name, 0.0), magnitude if magnitude == magnitude else float("inf"))
        if name in self.readers:
            seen = self._seen(self.found.inputs.get(self.readers[name][0]), value.flatten(0, -2))
            self.found.inputs |= dict.fromkeys(self.readers[name], seen)

    def _seen(self, before: Seen | None, rows: Tensor) -> Seen:
        """The first rows of a text are unlike all others (the largest numbers sit there); they are always kept."""
        pick = torch.cat([torch.arange(2), torch.randperm(len(rows), generator=self.random)[:6]])
        kept = rows[pick[pick < len(rows)].unique()]
        if before is None:
            return Seen(largest=rows.abs().amax(0), rows=kept)
        return Seen(
            largest=torch.maximum(before.largest, rows.abs().amax(0)), rows=torch.cat([before.rows, kept])[:ROWS]
        )
