"""The backends `tensorrt` and `tensorrt-rtx`: from a bundle's engine files to an engine that may be used.

The first load on a device proves every variant of attention with the golden cases and keeps the fastest that passes;
what was found is kept beside the kernels that were compiled, for the next load.
"""

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from dflash_engines.backend import Options
from dflash_engines.bundle import Bundle
from dflash_engines.cache_folder import cache_folder
from dflash_engines.device.engine import DeviceEngine, Settings
from dflash_engines.device.loading import ready_engine
from dflash_engines.device.opening import open_cuda
from dflash_engines.errors import DeviceError, EngineError
from dflash_engines.host_engine import declared_programs
from dflash_engines.tensorrt.engine_files import (
    Attention,
    Sidecar,
    check_machine,
    check_programs,
    read_plans,
    read_sidecar,
    rebuild,
    sidecar_name,
)
from dflash_engines.tensorrt.library import Library, TensorRtBackend, load_library
from dflash_engines.tensorrt.machine import compute_capability

log = logging.getLogger(__name__)
_TIMED = 20  # iterations, after as many that warm the clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the first load on a device found."""

    attention: Attention
    seconds: float  # of one iteration at the largest block size
    refused: dict[str, str]  # other variants, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """One bundle's engines, this library, this machine."""

    bundle: Bundle
    library: Library
    sidecar: Sidecar
    folder: Path  # for kernels and the choice

    def engine(self, attention: Attention) -> DeviceEngine:
        """Loaded and proven, with that kind of attention."""
        from dflash_engines.tensorrt.runtime import TensorRtPrograms

        limits, plans = self.sidecar.limits, read_plans(self.bundle, self.sidecar, attention)
        with ExitStack() as failed:
            device = open_cuda()
            failed.callback(device.close)
            declared = declared_programs(self.bundle.manifest)
            programs = TensorRtPrograms(self.library.trt, device, declared, plans, limits, self.folder / attention)
            failed.pop_all()
        settings = Settings(batches=(limits.max_batch,), plain_rows=min(limits.block_sizes))
        engine = ready_engine(self.bundle, device, programs, limits, settings)
        programs.save_caches()
        return engine


def load_tensorrt(bundle: Bundle, options: Options) -> DeviceEngine:
    """The entry point `tensorrt`. Raises EngineError or BundleError."""
    return _load("tensorrt", bundle, options)


def load_tensorrt_rtx(bundle: Bundle, options: Options) -> DeviceEngine:
    """The entry point `tensorrt-rtx`. Raises EngineError or BundleError."""
    return _load("tensorrt-rtx", bundle, options)


def _load(backend: TensorRtBackend, bundle: Bundle, options: Options) -> DeviceEngine:
    library, sidecar = load_library(backend), read_sidecar(bundle, backend)
    check_programs(bundle, sidecar)
    check_options(sidecar, options, rebuild(bundle, backend))
    check_machine(bundle, sidecar, library.version, compute_capability())
    found = _Load(bundle=bundle, library=library, sidecar=sidecar, folder=_found_out(bundle, backend))
    choice = kept_choice(found.folder)
    if choice is not None and choice.attention in sidecar.attentions():
        return found.engine(choice.attention)
    choice = choose(sidecar.attentions(), found.engine, iteration_seconds)
    keep_choice(found.folder, choice)
    return found.engine(choice.attention)


def check_options(sidecar: Sidecar, options: Options, again: str) -> None:
    """Engines have one size. Raises EngineError for another."""
    limits = sidecar.limits
    if options.max_len not in (None, limits.max_len):
        raise EngineError(f"these engines hold {limits.max_len} tokens, not {options.max_len}; {again} --max-len …")
    if options.slots is not None and options.slots > limits.max_batch:
        raise EngineError(f"these engines have {limits.max_batch} slots, not {options.slots}; {again} --max-batch …")
    if options.provider is not None:
        raise EngineError(f"{sidecar.backend} has no execution providers; leave provider out")


def _found_out(bundle: Bundle, backend: TensorRtBackend) -> Path:
    """Where this machine keeps what it found out about these engines."""
    return cache_folder() / bundle.manifest.files[sidecar_name(backend)].sha256[:16]


def choose(
    attentions: tuple[Attention, ...],
    load: Callable[[Attention], DeviceEngine],
    seconds: Callable[[DeviceEngine], float],
) -> Choice:
    """The fastest variant that passes the golden cases. Raises EngineError, with all reasons, when none does."""
    passed: dict[Attention, float] = {}
    refused: dict[str, str] = {}
    for attention in attentions:
        try:
            engine = load(attention)
        except DeviceError:
            raise
        except EngineError as e:
            log.warning("attention by %s is not used: %s", attention, e)
            refused[attention] = str(e)
            continue
        passed[attention] = seconds(engine)
        engine.close()
    if not passed:
        raise EngineError("; ".join(f"attention by {name}: {why}" for name, why in refused.items()))
    best = min(passed, key=passed.__getitem__)
    return Choice(attention=best, seconds=passed[best], refused=refused)


def iteration_seconds(engine: DeviceEngine) -> float:
    """Of one drafted iteration at the largest block size, from row 0 of every slot."""
    size, limits = max(engine.limits.block_sizes), engine.limits
    for slot in range(limits.max_batch):
        engine.place(slot, 0, 0, limits.max_len)
    begin = perf_counter()
    for turn in range(2 * _TIMED):
        if turn == _TIMED:
            begin = perf_counter()
        engine.launch(size)
        engine.collect()
    return (perf_counter() - begin) / _TIMED


def kept_choice(folder: Path) -> Choice | None:
    """What an earlier load found; None when there is nothing that can be read."""
    try:
        return Choice(**json.loads((folder / "choice.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def keep_choice(folder: Path, choice: Choice) -> None:
    """For the next load. A folder that can't be written costs it time, no more."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "choice.json").write_text(json.dumps(asdict(choice)), encoding="utf-8")
    except OSError as e:
        log.warning("the choice of attention was not kept: %s", e)
