"""From a bundle to a decoder that has proved itself."""

import logging
from pathlib import Path

from dflash_engines import golden
from dflash_engines.backend import Options, load_engine
from dflash_engines.bundle import Bundle
from dflash_engines.host_engine import HostEngine, declared_programs
from dflash_runtime.cost_cache import cached_costs
from dflash_runtime.serving.concurrent_decoder import ConcurrentDecoder
from dflash_runtime.serving.observer import Observer

log = logging.getLogger("dflash.server")


def load(
    observer: Observer, *, path: Path, backend: str, options: Options, queue_size: int, target_gap: float
) -> ConcurrentDecoder:
    """Load the bundle in folder `path`, run its golden cases, and time its block sizes. Raises DflashError."""
    engine = load_engine(Bundle.open(path), backend, options)
    if isinstance(engine, HostEngine):  # engines of devices have proved themselves by now
        prove(engine)
    costs = cached_costs(engine, backend=backend, threads=options.threads)()
    return ConcurrentDecoder(
        engine, queue_size=queue_size, target_gap=target_gap, observer=observer, costs=lambda: costs
    )


def prove(engine: HostEngine) -> None:
    """Run the bundle's golden cases on this machine. Raises EngineError or BundleError."""
    manifest = engine.bundle.manifest
    cases = golden.Golden.load(engine.bundle.file(golden.FILE))
    runner = golden.Runner(engine.programs, declared_programs(manifest), manifest.limits)
    deviation = golden.check(cases, runner)
    log.info("golden test passed", extra={"cases": len(cases.calls), "deviation": deviation})
