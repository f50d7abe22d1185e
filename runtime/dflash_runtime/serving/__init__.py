"""Many requests over one engine: a scheduler, a thread that drives it, and an HTTP server before them."""

from dflash_runtime.serving.concurrent_decoder import ConcurrentDecoder
from dflash_runtime.serving.errors import CancelledError, ClosedError, DeadlineError, QueueFullError
from dflash_runtime.serving.generation import Urgency
from dflash_runtime.serving.streams import AnswerStream, AsyncAnswerStream

__all__ = [
    "AnswerStream",
    "AsyncAnswerStream",
    "CancelledError",
    "ClosedError",
    "ConcurrentDecoder",
    "DeadlineError",
    "QueueFullError",
    "Urgency",
]
