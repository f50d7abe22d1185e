"""How every command ends: errors meant for the user become one line and an exit code, never a stack trace."""

import sys
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from dflash_engines.errors import DflashError, EngineError

ENGINE_FAILURE, BAD_INPUT, OUTPUTS_DIFFER, INTERRUPTED = 1, 2, 3, 130


def run_command(command: Callable[[], object]) -> None:
    """Run `command`; a DflashError goes to stderr, and the exit code is 1 if an engine failed, 2 for bad input."""
    try:
        command()
    except DflashError as fault:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(fault))}", highlight=False)
        sys.exit(ENGINE_FAILURE if isinstance(fault, EngineError) else BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
