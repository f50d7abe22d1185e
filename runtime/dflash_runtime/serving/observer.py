"""What a scheduler tells about its work, for metrics. Called by its thread: return at once."""

from typing import Protocol

from dflash_engines.errors import DflashError
from dflash_runtime.completion import Completion, Step
from dflash_runtime.serving.generation import Generation


class Observer(Protocol):
    """Told of every event; seconds are those between two events of the same request."""

    def admitted(self, generation: Generation, waited: float) -> None:
        """It got a slot."""
        ...

    def stepped(self, generation: Generation, step: Step, since: float, first: bool) -> None:
        """It gained tokens; `since` its arrival if they are the first, else since the step before."""
        ...

    def ended(self, generation: Generation, outcome: Completion | DflashError) -> None:
        """It is over, with its answer or without."""
        ...


class NoObserver:
    """Looks away."""

    def admitted(self, generation: Generation, waited: float) -> None:
        """See Observer."""

    def stepped(self, generation: Generation, step: Step, since: float, first: bool) -> None:
        """See Observer."""

    def ended(self, generation: Generation, outcome: Completion | DflashError) -> None:
        """See Observer."""
