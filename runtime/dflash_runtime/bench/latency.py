"""How long a reader waits: until the first token, for each iteration, and between two tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from dflash_runtime.decoder import Decoder

PERCENTILES = (50, 90, 99)
Tokens = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyResult:
    """Percentiles in milliseconds, at one block size. Tokens of one iteration arrive together: gaps of 0 but one."""

    name: str
    first_token: dict[str, float]
    iteration: dict[str, float]
    between_tokens: dict[str, float]
    iterations: int


def measure_latency(
    decoder: Decoder, name: str, block_size: int | None, prompts: Sequence[Tokens], new_tokens: int
) -> LatencyResult:
    """Time every step as its receiver sees it. Prefill and the first draft call are in the first two numbers."""
    first, iterations, gaps = list[float](), list[float](), list[float]()
    for prompt in prompts:
        decoder.forget()
        at = perf_counter()
        steps = decoder.generate(prompt, max_new_tokens=new_tokens, block_size=block_size)
        for number, step in enumerate(steps):
            now = perf_counter()
            if number == 0:
                first.append(now - at)
            else:
                iterations.append(now - at)
                gaps += [now - at] + [0.0] * (len(step.token_ids) - 1)
            at = now
    return LatencyResult(
        name=name,
        first_token=percentiles(first),
        iteration=percentiles(iterations),
        between_tokens=percentiles(gaps),
        iterations=len(iterations),
    )


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and the mean, in milliseconds."""
    if not seconds:
        return {}
    found = {f"p{p}": 1e3 * float(np.percentile(seconds, p)) for p in PERCENTILES}
    return found | {"mean": 1e3 * float(np.mean(seconds))}
