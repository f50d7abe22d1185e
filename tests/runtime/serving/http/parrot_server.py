"""`python -m tests.runtime.serving.http.parrot_server FOLDER PORT SECONDS_A_PASS`: a parrot's server, to be killed."""

import sys
from functools import partial
from pathlib import Path
from time import sleep

from dflash_engines.command import run_command
from dflash_runtime.serving import ConcurrentDecoder
from dflash_runtime.serving.http.metrics import Metrics
from dflash_runtime.serving.http.server import listen, serve
from dflash_runtime.serving.http.service import Service
from dflash_runtime.serving.http.settings import Settings
from tests.runtime.serving.http.parrot import Parrot, parrot_engine


def main(folder: str, port: str, seconds_a_pass: str, drain_timeout: str) -> None:
    def load(metrics: Metrics) -> ConcurrentDecoder:
        engine = parrot_engine(Path(folder))
        assert isinstance(engine.programs, Parrot)
        engine.programs.pace = partial(sleep, float(seconds_a_pass))
        return ConcurrentDecoder(engine, observer=metrics)

    settings = Settings(model="parrot", drain_timeout=float(drain_timeout))
    serve(Service(load, settings), listen("127.0.0.1", int(port), settings.stall_timeout))


if __name__ == "__main__":
    run_command(partial(main, *sys.argv[1:]), extra="serve")
