"""Why a request that is right in itself was not answered: the service is full, late or closing."""

from dflash_engines.errors import DflashError


class QueueFullError(DflashError):
    """As many requests wait as may; `retry_after` guesses in how many seconds one will have left."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(DflashError):
    """The request's time was up before its answer was whole."""


class CancelledError(DflashError):
    """The request was cancelled by its sender."""


class ClosedError(DflashError):
    """The service is shutting down, or its process is not the one that loaded it."""
