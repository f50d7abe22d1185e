"""How every command ends: errors meant for the user become one line and an exit code, never a stack trace."""

import sys
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from dflash_engines.errors import DflashError, EngineError

ENGINE_FAILURE, BAD_INPUT, OUTPUTS_DIFFER, INTERRUPTED = 1, 2, 3, 130


def run_command(command: Callable[[], object], *, extra: str) -> None:
    """Run `command`, which needs the packages of dflash-trt[`extra`].

    A DflashError goes to stderr; the exit code is 1 if an engine failed, 2 for bad input or a missing package.
    """
    try:
        command()
    except DflashError as fault:
        _end(str(fault), ENGINE_FAILURE if isinstance(fault, EngineError) else BAD_INPUT)
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.startswith("dflash_"):
            raise
        _end(f"this command needs the package {fault.name!r}: pip install 'dflash-trt[{extra}]'", BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end(message: str, code: int) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(message)}", highlight=False)
    sys.exit(code)
