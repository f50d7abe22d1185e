"""How commands end: errors meant for the user become one line and an exit code, never a stack trace."""

import sys
from collections.abc import Callable

from rich.console import Console

from dflash_engines.errors import BundleError, DflashError, RequestError

ENGINE_FAILURE, BAD_INPUT, OUTPUTS_DIFFER = 1, 2, 3


def run_command(command: Callable[[], object]) -> None:
    """Run `command`; on a DflashError, print it to stderr and exit with 2 for bad input, 1 otherwise."""
    try:
        command()
    except DflashError as e:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {_escaped(e)}", highlight=False)
        sys.exit(BAD_INPUT if isinstance(e, BundleError | RequestError) else ENGINE_FAILURE)


def _escaped(error: DflashError) -> str:
    return str(error).replace("[", r"\[")
