"""dflash-serve: a bundle behind OpenAI's API."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dflash_engines.backend import Options
from dflash_engines.command import run_command
from dflash_runtime.serving.concurrent_decoder import DEFAULT_QUEUE_SIZE, DEFAULT_SLOTS, DEFAULT_TARGET_GAP
from dflash_runtime.serving.http.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode="rich")
MIB = 2**20


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def serve_bundle(
    bundle: Annotated[Path, typer.Argument(help="Folder that dflash-export wrote.", show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="DFLASH_API_KEY",
            help="Only requests with this key are served. May be given several times; better in the environment.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name that requests give. Default: the folder's.", show_default=False)
    ] = None,
    slots: Annotated[int, typer.Option(help="Requests that run together.", min=1)] = DEFAULT_SLOTS,
    queue_size: Annotated[int, typer.Option(help="More that may wait.", min=0)] = DEFAULT_QUEUE_SIZE,
    max_len: Annotated[
        int | None, typer.Option(help="Tokens a request can hold. Default: the bundle's.", show_default=False)
    ] = None,
    target_gap_ms: Annotated[
        float, typer.Option(help="Prompts are computed in chunks that keep answers that run under this gap.", min=1)
    ] = DEFAULT_TARGET_GAP * 1000,
    request_timeout: Annotated[
        float | None, typer.Option(help="Seconds an answer may take, waiting included.", show_default=False)
    ] = None,
    drain_timeout: Annotated[float, typer.Option(help="Seconds for running answers after SIGTERM.", min=0)] = 30.0,
    max_body_mb: Annotated[float, typer.Option(help="Largest request, in MiB.")] = 4.0,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Web pages of this origin may ask (CORS). Default: none.", show_default=False),
    ] = None,
    page: Annotated[bool, typer.Option(help="Serve the playground at /.")] = True,
    acceptance_alarm: Annotated[
        float, typer.Option(help="Raise an alarm when a drafting pass gains fewer tokens than this.")
    ] = 1.2,
    threads: Annotated[int | None, typer.Option(help="CPU threads. Default: all.", show_default=False)] = None,
    backend: Annotated[str, typer.Option(help="Which engine runs the bundle.")] = "onnxruntime",
) -> None:
    """Serve a bundle over HTTP, as OpenAI's API has it.

    Requests that come together run together, in slots of one engine; each gets
    the tokens that it gets alone. See docs/serving.md.

    [bold]Examples[/]

    dflash-serve build/demo

    DFLASH_API_KEY=secret dflash-serve build/demo --host 0.0.0.0 --slots 8

    curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}'

    [bold]Exit codes[/]

    0 ended by SIGTERM or Ctrl-C; 1 the engine failed; 2 bad input
    """
    # Packages of the extra that not everybody has: `run_command` names it.
    from dflash_runtime.serving.http.loading import load
    from dflash_runtime.serving.http.server import listen, serve
    from dflash_runtime.serving.http.service import Service

    settings = Settings(
        model=model or bundle.resolve().name,
        api_keys=tuple(api_key or ()),
        allowed_origins=tuple(allow_origin or ()),
        page=page,
        largest_body=int(max_body_mb * MIB),
        request_timeout=request_timeout,
        drain_timeout=drain_timeout,
        acceptance_alarm=acceptance_alarm,
    )
    options = Options(threads=threads, max_len=max_len, slots=slots)
    loader = partial(
        load, path=bundle, backend=backend, options=options, queue_size=queue_size, target_gap=target_gap_ms / 1000
    )
    serve(Service(loader, settings), listen(host, port, settings.stall_timeout))


def main() -> None:
    """The console script."""
    run_command(app, extra="serve")
