"""What the loop asks of structured output, whichever library knows the grammar."""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.int32]  # [rows, W]: one bit a token, least significant first; 0 forbids


class Constraint(Protocol):
    """One answer's state in its grammar: what has been committed, and what may follow."""

    @property
    def complete(self) -> bool:
        """Whether nothing may follow but the end."""
        ...

    @property
    def fault(self) -> str | None:
        """Why it gave up: from then on, its masks forbid everything."""
        ...

    def steer(self, drafted: Sequence[int]) -> list[int]:
        """The draft with the tokens that the grammar forces in their places; cheap beside `masks`."""
        ...

    def masks(self, drafted: Sequence[int]) -> Masks:
        """A mask for what may follow the committed tokens, and one behind each of `drafted`: [len(drafted) + 1, W].

        Rows behind the first drafted token that is refused forbid nothing: no pass gets to them.
        """
        ...

    def commit(self, token: int) -> None:
        """Take in a token of the answer. Raises RequestError when the grammar has no place for it."""
        ...


class Grammar(Protocol):
    """A grammar, ready for any number of answers."""

    def start(self, stop_token_ids: Collection[int]) -> Constraint:
        """The state before an answer's first token; the answer may end with one of `stop_token_ids`."""
        ...
