"""Core ratios, each of two things measured in turn in this process: speculative over plain decoding (fp32 and int8, the
plain one padded and unpadded), plain decoding over transformers, the loop's own overhead, the cost of a long cache.

    python scripts/bench_core.py --fp32 build/demo --int8 build/demo-int8 --target build/target --long build/demo-long
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.host_engine import HostEngine, SingleRowEngine, host_limits
from dflash_engines.onnxruntime_cpu import OnnxRuntimePrograms
from dflash_runtime.completion import Completion
from dflash_runtime.decoder import Decoder

SETS = ("gsm8k", "humaneval")
EVALUATION = Path(__file__).parents[1] / "runtime" / "dflash_runtime" / "evaluation"
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    prompts: int  # of each set
    new_tokens: int
    repeats: int


def prompts(plan: Plan) -> Iterator[tuple[str, Messages]]:
    """The first prompts of each set, as chats."""
    for name in SETS:
        lines = (EVALUATION / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        for line in lines[: plan.prompts]:
            yield name, [{"role": "user", "content": json.loads(line)["turns"][0]}]


def engines(folder: Path, max_len: int | None = None) -> tuple[Decoder, Decoder]:
    """The bundle as usual, and for the unpadded baseline with calls of one row; one set of sessions serves both."""
    bundle = Bundle.open(folder)
    options = Options(slots=1, max_len=max_len)
    programs, limits = OnnxRuntimePrograms(bundle, options), host_limits(bundle, options)
    return Decoder(HostEngine(bundle, programs, limits)), Decoder(SingleRowEngine(bundle, programs, limits))


def rate(decoder: Decoder, messages: Messages, plan: Plan, block_size: int | None) -> tuple[float, Completion]:
    """Tokens a second over the whole answer, prefill and first draft call included."""
    decoder.forget()
    begin = time.perf_counter()
    found = decoder.complete(messages, max_new_tokens=plan.new_tokens, block_size=block_size)
    return len(found.token_ids) / (time.perf_counter() - begin), found


def speculation(folder: Path, plan: Plan) -> dict[str, dict[str, float]]:
    """Per set: medians over prompts of the ratio to plain decoding, padded and not, and the acceptance length."""
    padded, unpadded = engines(folder)
    found: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in SETS}
    for name, messages in prompts(plan):
        for decoder, block in ((padded, None), (padded, 1), (unpadded, 1)):
            rate(decoder, messages, replace(plan, new_tokens=4), block)
        rows = [
            (rate(padded, messages, plan, None), rate(padded, messages, plan, 1), rate(unpadded, messages, plan, 1))
            for _ in range(plan.repeats)
        ]
        drafted, plain, single = (statistics.median(r[i][0] for r in rows) for i in range(3))
        if rows[0][0][1].token_ids != rows[0][1][1].token_ids:
            raise SystemExit(f"outputs differ with and without the drafter on {messages}; no speed is reported")
        found[name].append((drafted / plain, drafted / single, rows[0][0][1].acceptance_length, drafted))
    keys = ("over_padded", "over_unpadded", "acceptance_length", "tokens_per_second")
    return {name: {k: statistics.median(c) for k, c in zip(keys, zip(*rows, strict=True), strict=True)}
            for name, rows in found.items()}  # fmt: skip


def over_transformers(folder: Path, target: Path, plan: Plan) -> dict[str, float]:
    """Our plain decoding over `generate` of transformers, the same prompts in turn."""
    padded, unpadded = engines(folder)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    ours: dict[str, list[float]] = {"padded": [], "unpadded": []}
    for _, messages in prompts(replace(plan, prompts=1)):
        ids = list(padded.encoder.encode(messages))
        for _ in range(plan.repeats):
            theirs = _transformers_rate(model, ids, plan.new_tokens)
            ours["padded"].append(rate(padded, messages, plan, 1)[0] / theirs)
            ours["unpadded"].append(rate(unpadded, messages, plan, 1)[0] / theirs)
    return {name: statistics.median(values) for name, values in ours.items()}


@torch.no_grad()
def _transformers_rate(model: torch.nn.Module, ids: list[int], new_tokens: int) -> float:
    generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]
    begin = time.perf_counter()
    out = generate(torch.tensor([ids]), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
    return (out.shape[1] - len(ids)) / (time.perf_counter() - begin)


def loop_overhead(folder: Path, plan: Plan) -> float:
    """The host's share of decoding: what an iteration costs beyond its three program calls."""
    decoder = engines(folder)[0]
    shares = []
    for _, messages in prompts(plan):
        seconds = rate(decoder, messages, plan, None)[1].seconds
        shares.append(seconds.host / seconds.decode)
    return statistics.median(shares)


def long_cache_ratio(long: Path, repeats: int) -> float:
    """An iteration at 300 live tokens with caches for 8192 tokens over one with caches for 512."""
    loaded = [engines(long, max_len)[0].engine for max_len in (512, 8192)]
    times: list[list[float]] = [[], []]
    for engine in loaded:
        chunk = engine.limits.prefill_chunk
        for start in range(0, 300, chunk):
            engine.finish_prefill(0, [7] * min(chunk, 300 - start), start)
    for _ in range(20 * repeats):
        for engine, taken in zip(loaded, times, strict=True):
            engine.place(0, anchor=9, start=300, limit=301)
            begin = time.perf_counter()
            engine.launch(engine.bundle.manifest.block_size)
            engine.collect()
            taken.append(time.perf_counter() - begin)
    return statistics.median(times[1]) / statistics.median(times[0])


def table(results: dict[str, object]) -> Table:
    """Every number on a line of its own."""
    shown = Table("what", "value", title="dflash-trt core ratios")
    for name, value in results.items():
        for key, number in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(number, dict):
                text = ", ".join(f"{k} {v:.2f}" for k, v in number.items())
            else:
                text = f"{number:.3f}" if isinstance(number, float) else str(number)
            shown.add_row(f"{name} {key}".strip(), text)
    return shown


def main(
    fp32: Annotated[Path, typer.Option(help="fp32 bundle.")],
    int8: Annotated[Path, typer.Option(help="int8 bundle.")],
    target: Annotated[Path, typer.Option(help="Hugging Face folder of the target.")],
    long: Annotated[Path, typer.Option(help="Bundle with max_len 8192.")],
    prompts: Annotated[int, typer.Option(help="Prompts of each set.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 128,
    repeats: Annotated[int, typer.Option(help="Runs of each measurement; medians are shown.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Write the numbers here as JSON.")] = None,
) -> None:
    """Measure and print. Nothing else should run on the machine meanwhile."""
    plan = Plan(prompts=prompts, new_tokens=new_tokens, repeats=repeats)
    results: dict[str, object] = {
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, onnxruntime {version('onnxruntime')}",
        "date": time.strftime("%Y-%m-%d"),
        "long cache": long_cache_ratio(long, repeats),
        "loop overhead": loop_overhead(fp32, plan),
        "plain over transformers, fp32": over_transformers(fp32, target, plan),
        "plain over transformers, int8": over_transformers(int8, target, plan),
        "speculative over plain, fp32": speculation(fp32, plan),
        "speculative over plain, int8": speculation(int8, plan),
    }
    Console().print(table(results))
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
