"""What slots gain: the same requests one at a time and many at once, in turn, over one engine in one process.

python scripts/serving_load.py build/demo --slots 4 --concurrency 16
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Annotated

import typer

from dflash_runtime.request import Request
from dflash_runtime.serving import ConcurrentDecoder


def timed(decoder: ConcurrentDecoder, requests: Sequence[Request], concurrency: int) -> tuple[float, list[float]]:
    """Tokens a second over all, and the seconds between two steps of an answer."""
    gaps: list[float] = []

    def answer(request: Request) -> int:
        tokens, before = 0, None
        for step in decoder.generate(request):
            now = perf_counter()
            gaps.extend([] if before is None else [now - before])
            tokens, before = tokens + len(step.token_ids), now
        return tokens

    begin = perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        tokens = sum(pool.map(answer, requests))
    return tokens / (perf_counter() - begin), gaps


def main(
    bundle: Path,
    prompts: Annotated[Path, typer.Option(help="JSONL with turns.")] = Path("docs/demo_prompts.jsonl"),
    requests: int = 16,
    slots: int = 4,
    concurrency: int = 16,
    repeats: int = 3,
    max_new_tokens: int = 64,
    threads: int | None = None,
) -> None:
    """Print tokens a second, their ratio, and the gaps between steps, as JSON."""
    turns = [json.loads(line)["turns"][0] for line in prompts.read_text().splitlines()]
    with ConcurrentDecoder.load(bundle, slots=slots, queue_size=requests, threads=threads) as decoder:
        asked = [
            decoder.request([{"role": "user", "content": turns[i % len(turns)]}], max_new_tokens=max_new_tokens)
            for i in range(requests)
        ]
        decoder.complete(asked[0])
        ratios, gaps, speeds = [], list[float](), []
        for _ in range(repeats):
            alone, _ = timed(decoder, asked, 1)
            together, found = timed(decoder, asked, concurrency)
            ratios.append(together / alone)
            speeds.append((alone, together))
            gaps.extend(found)
    percentiles = quantiles(gaps, n=100)
    typer.echo(
        json.dumps(
            {
                "ratio": round(median(ratios), 2),
                "tokens_per_second": [round(median(speed), 1) for speed in zip(*speeds, strict=True)],
                "gap_p50_p99": [round(percentiles[49], 4), round(percentiles[98], 4)],
            }
        )
    )


if __name__ == "__main__":
    typer.run(main)
