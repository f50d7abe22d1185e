"""What room for long texts costs a short one: an iteration with large caches over one with small ones."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter

from dflash_engines.bundle import Bundle
from dflash_engines.engine import Engine
from dflash_runtime.bench.system import load_decoder

LIVE, SMALL = 300, 512  # tokens
_PASSES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheResult:
    """Milliseconds of an iteration at LIVE tokens, with caches for `small` and for `large` tokens."""

    small: int
    large: int
    small_ms: float
    large_ms: float

    @property
    def ratio(self) -> float:
        """1 when only live tokens cost."""
        return self.large_ms / self.small_ms


def measure_cache(bundle: Bundle, backend: str, threads: int | None) -> CacheResult | None:
    """Both engines in turn; None when the bundle has no room to compare."""
    large = bundle.manifest.limits.max_len
    if large < 2 * SMALL:
        return None
    engines = [load_decoder(bundle, backend, threads, max_len).engine for max_len in (SMALL, large)]
    for engine in engines:
        _fill(engine)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_PASSES):
        for engine, taken in zip(engines, times, strict=True):
            taken.append(_iteration(engine))
    small_ms, large_ms = (1e3 * median(taken) for taken in times)
    return CacheResult(small=SMALL, large=large, small_ms=small_ms, large_ms=large_ms)


def _fill(engine: Engine) -> None:
    chunk = engine.limits.prefill_chunk
    for start in range(0, LIVE, chunk):
        engine.prefill(0, [7 % engine.bundle.manifest.geometry.vocab_size] * min(chunk, LIVE - start), start)


def _iteration(engine: Engine) -> float:
    engine.place(0, anchor=engine.bundle.manifest.mask_token_id, start=LIVE, limit=LIVE + 1)
    begin = perf_counter()
    engine.launch(max(engine.limits.block_sizes))
    engine.collect()
    return perf_counter() - begin
