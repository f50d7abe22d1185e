"""Build engines of bundles with TensorRT-RTX, for which no GPU is needed, and account for every byte of them.

    python scripts/bench_engines.py build/demo-fp16 … --compute-capability 8.9

An engine is its program's weights, and kernels: some megabytes for each profile, whatever the size of the weights.
The table says how large both are. Nothing is run.
"""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dflash_engines.bundle import Bundle
from dflash_engines.tensorrt.build import BuildRequest, build, plan
from dflash_engines.tensorrt.engine_files import Sidecar
from dflash_engines.tensorrt.library import load_library

MB = 1e6


def main(
    bundles: Annotated[list[Path], typer.Argument(help="Bundles to compile; they are not changed.")],
    compute_capability: Annotated[str, typer.Option(help="GPUs to build for, as 8.9,12.0.")] = "8.9",
    block_sizes: Annotated[str, typer.Option(help="Block sizes, as 4,8; default: those of a usual build.")] = "",
) -> None:
    """Print a table of sizes, times and host memory."""
    sizes = tuple(map(int, block_sizes.split(","))) if block_sizes else None
    request = BuildRequest(compute_capabilities=tuple(compute_capability.split(",")), block_sizes=sizes)
    table = Table(title="engines, MB")
    for column in (
        "bundle",
        "engine",
        "profiles",
        "weights",
        "engine is",
        "over",
        "alone",
        "a profile",
        "built in",
        "host",
    ):
        table.add_column(column, justify="left" if column in ("bundle", "engine") else "right")
    for path in bundles:
        largest = max(Bundle.open(path).manifest.limits.block_sizes)
        whole = built(path, request)
        alone = built(path, replace(request, block_sizes=(largest,)))
        add_rows(table, path.name, whole, alone)
    Console().print(table)


def built(path: Path, request: BuildRequest) -> Sidecar:
    """The engines' description; the engines themselves are dropped."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        shutil.copytree(path, copy)
        planned = plan(Bundle.open(copy), load_library("tensorrt-rtx"), request)
        return build(planned, lambda *_: None)[1]


def add_rows(table: Table, bundle: str, whole: Sidecar, alone: Sidecar) -> None:
    """One row an engine: with all block sizes, and with one, which gives what each further profile costs."""
    profiles = len(whole.limits.block_sizes)
    for engine, single in zip(whole.engines, alone.engines, strict=True):
        prefill = 0 if engine.program.startswith("draft") else 1
        each = (engine.bytes - single.bytes) / max(profiles - 1, 1)
        over = f"{engine.bytes / engine.weight_bytes:.3f}" if engine.weight_bytes > MB else ""
        name = " ".join(filter(None, (engine.program, engine.attention)))
        figures = (engine.weight_bytes, engine.bytes)
        table.add_row(
            bundle, name, str(profiles + prefill), *(f"{n / MB:.1f}" for n in figures), over,
            f"{(single.bytes - engine.weight_bytes) / MB:.1f}", f"{each / MB:.1f}", f"{engine.seconds:.0f} s",
            f"{engine.host_bytes / MB:.0f}",
        )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
