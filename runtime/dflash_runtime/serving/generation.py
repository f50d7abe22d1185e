"""One request on its way through the service: what it asks, who reads the answer, and where it stands."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from time import monotonic

from dflash_engines.engine import Timing
from dflash_engines.errors import DflashError, RequestError
from dflash_runtime.answer import Answer
from dflash_runtime.completion import Completion, Step
from dflash_runtime.request import count

Event = Step | Completion | DflashError  # steps, and then one of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgency:
    """When a request is to be served. Raises RequestError for a wrong value."""

    priority: int = 0  # smaller goes first; equal ones in the order of arrival
    timeout: float | None = None  # seconds until the answer must be whole; None waits

    def __post_init__(self) -> None:
        count("priority", self.priority)
        if self.timeout is not None and not (isfinite(self.timeout) and self.timeout > 0):
            raise RequestError(f"timeout must be a number of seconds above 0, not {self.timeout!r}")


WHENEVER = Urgency()


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """Times are seconds of the monotonic clock."""

    answer: Answer
    deliver: Callable[[Event], None]  # called by the thread that drives the scheduler; must return at once
    urgency: Urgency = WHENEVER
    arrived: float = field(default_factory=monotonic)
    admitted: float | None = None
    told: float | None = None  # when the last step was delivered
    engine_at_admission: Timing | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """From any thread: nobody reads the answer any more. Its slot is free at the next iteration."""
        self.cancelled = True

    def expired(self, now: float) -> bool:
        """Whether its time is up."""
        return self.urgency.timeout is not None and now >= self.arrived + self.urgency.timeout
