"""The entry point of dflash-train. The commands are in cli.py, which can't be imported without torch."""

from dflash_engines.command import run_command


def main() -> None:
    """A user's mistake, or a missing package, is one line."""
    run_command(_app, extra="training")


def _app() -> None:
    from dflash_training.cli import app

    app()


if __name__ == "__main__":
    main()
