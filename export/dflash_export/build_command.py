"""dflash-export build: engines for a bundle, by TensorRT-RTX, which needs no GPU for it, or TensorRT. Without torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from dflash_engines.tensorrt.build import BuildRequest
    from dflash_engines.tensorrt.engine_files import Sidecar
    from dflash_engines.tensorrt.memory import MemoryTable

_GB, _MB = 10**9, 10**6
Capabilities = Annotated[
    str,
    typer.Option(
        "--compute-capability",
        help="TensorRT-RTX: GPUs to build for, as 8.9,12.0; default 8.0,8.6,8.9,12.0. TensorRT: the one at hand.",
    ),
]
Workspace = Annotated[float | None, typer.Option(help="Scratch memory that kernels may use at most, in GB.")]


def build(  # noqa: PLR0913, as many options as a build has
    bundle: Annotated[Path, typer.Argument(help="The bundle; the engines are added to it.")],
    backend: Annotated[Literal["tensorrt-rtx", "tensorrt"], typer.Option(help="Who compiles.")] = "tensorrt-rtx",
    compute_capability: Capabilities = "",
    block_sizes: Annotated[
        str, typer.Option(help="As 4,8; default: the bundle's largest, and about its half and quarter.")
    ] = "",
    max_batch: Annotated[int | None, typer.Option(help="Requests decoded together; default: the bundle's.")] = None,
    attention: Annotated[
        str, typer.Option(help="Ways to compute attention, each an engine: grouped,traced. The fastest is kept.")
    ] = "grouped,traced",
    workspace: Workspace = None,
    device_memory: Annotated[
        float | None, typer.Option(help="The GPU's memory in GB; what needs more is refused before it is built.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the tables.")] = False,
) -> None:
    """Compile the programs of BUNDLE to engines. TensorRT-RTX needs no GPU for it; TensorRT compiles on the GPU.

    The length of caches (max_len) is the bundle's: export it again for another one.
    """
    from dflash_engines.errors import EngineError
    from dflash_engines.tensorrt.build import BuildRequest
    from dflash_engines.tensorrt.engine_files import ATTENTIONS

    if strange := [name for name in attention.split(",") if name not in ATTENTIONS]:
        raise EngineError(f"--attention {strange[0]!r} is not one of {', '.join(ATTENTIONS)}")
    request = BuildRequest(
        compute_capabilities=tuple(filter(None, compute_capability.split(","))),
        block_sizes=_sizes(block_sizes), max_batch=max_batch,
        attention=tuple(name for name in ATTENTIONS if name in attention.split(",")),
        workspace=None if workspace is None else int(workspace * _GB),
        device_memory=None if device_memory is None else int(device_memory * _GB),
    )  # fmt: skip
    run_build(bundle, backend, request, as_json=as_json)


def run_build(
    path: Path, backend: Literal["tensorrt-rtx", "tensorrt"], request: "BuildRequest", *, as_json: bool
) -> None:
    """Build with progress on the terminal; the memory table comes before, the engines' after."""
    from dflash_engines.bundle import Bundle
    from dflash_engines.tensorrt import build as builds
    from dflash_engines.tensorrt.library import load_library

    console = Console(stderr=True)
    planned = builds.plan(Bundle.open(path), load_library(backend), request)
    console.print(_memory(planned.memory))
    columns = (TextColumn("{task.description:<70}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        _, sidecar = builds.build(planned, lambda what, part: progress.update(task, description=what, completed=part))
    if as_json:
        typer.echo(json.dumps(sidecar.model_dump(mode="json")))
    else:
        Console().print(_engines(sidecar))


def _sizes(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(sorted({int(size) for size in text.split(",")})) if text else None
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of sizes such as 4,8", param_hint="--block-sizes") from None


def _memory(found: "MemoryTable") -> Table:
    table = Table(title="device memory")
    table.add_column("")
    table.add_column("MB", justify="right")
    for row in found.rows:
        name = f"[dim]  of these, {row.what}[/]" if row.within else row.what
        table.add_row(name, f"{row.nbytes / _MB:,.1f}")
    table.add_row("[bold]sum[/]", f"[bold]{found.total / _MB:,.1f}[/]")
    return table


def _engines(sidecar: "Sidecar") -> Table:
    where = ", ".join(sidecar.compute_capabilities)
    table = Table(title=f"{sidecar.backend} {sidecar.version} for {where}; nothing has been run yet")
    for column in ("engine", "MB", "over its weights", "built in", "host memory", "attention"):
        table.add_column(column, justify="left" if column in ("engine", "attention") else "right")
    for engine in sidecar.engines:
        name = " ".join(filter(None, (engine.program, engine.attention)))
        over = (engine.bytes - engine.weight_bytes) / _MB
        how = "in parts (fp32)" if engine.decomposable else "fused" if engine.attention else ""
        figures = (f"{engine.bytes / _MB:.1f}", f"{over:.1f} MB", f"{engine.seconds:.1f} s")
        table.add_row(name, *figures, f"{engine.host_bytes / _MB:.0f} MB", how)
    return table
