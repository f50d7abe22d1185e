"""Cost tables on disk: an engine is measured once a machine, and again when something changes that its speed hangs on.

A file that can't be read is measured anew, a folder that can't be written to costs a measurement at every start.
"""

import hashlib
import json
import logging
import os
import platform
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time

from dflash_engines.bundle import Bundle
from dflash_engines.cache_folder import cache_folder
from dflash_engines.contract import Limits
from dflash_engines.engine import Engine
from dflash_runtime.cost_table import CostTable, measure

FRESH_SECONDS = 7 * 24 * 3600.0  # a table may have been made in a busy hour: it isn't kept for ever
_FORMAT = 2  # of the files; part of their names' hash
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt_rtx", "torch")
_log = logging.getLogger(__name__)


def cached_costs(engine: Engine, *, backend: str, threads: int | None) -> Callable[[], CostTable]:
    """A function that gives the engine's table: read from disk, or measured and left there."""

    def costs() -> CostTable:
        file = cache_folder() / "costs" / f"{_key(engine.bundle, engine.limits, backend, threads)}.json"
        sizes = tuple(sorted({1, *engine.limits.block_sizes}))
        found = _read(file, sizes)
        if found is None:
            found = measure(engine)
            _write(file, found)
        return found

    return costs


def _key(bundle: Bundle, limits: Limits, backend: str, threads: int | None) -> str:
    """A hash over what the speed hangs on: the programs, who runs them, how, and on which machine."""
    manifest = bundle.manifest
    cores = len(os.sched_getaffinity(0))
    facts = {
        "format": _FORMAT,
        "programs": {name: manifest.files[file].sha256 for name, file in sorted(manifest.programs.items())},
        "limits": repr(limits),
        "backend": backend,
        "runtimes": {name: _version(name) for name in _RUNTIMES},
        "threads": cores if threads is None else threads,
        "machine": [platform.node(), platform.machine(), _processor(), cores],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _read(file: Path, block_sizes: tuple[int, ...]) -> CostTable | None:
    try:
        if time() - file.stat().st_mtime > FRESH_SECONDS:
            return None
        table = CostTable.from_json(json.loads(file.read_bytes()))
        if table.block_sizes != block_sizes:
            raise ValueError(f"block sizes {table.block_sizes}, wanted {block_sizes}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        _log.info("%s holds no cost table (%r); measuring again", file, e)
        return None
    return table


def _write(file: Path, table: CostTable) -> None:
    """Whole or not at all: another process may read it at any time."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".tmp", delete=False, encoding="utf-8") as part:
            json.dump(table.as_json(), part)
        Path(part.name).replace(file)
    except OSError as e:
        _log.info("the cost table can't be kept in %s (%s); it will be measured again", file.parent, e)
