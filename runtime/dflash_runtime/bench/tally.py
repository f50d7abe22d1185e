"""How much of what was drafted is kept: by length of the runs, and by position in the block."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_runtime.completion import Completion


@dataclass(slots=True, kw_only=True)
class Tally:
    """Verifying passes, by the block's size and the tokens they gained; the prefill's pass is none of them."""

    passes: Counter[tuple[int, int]] = field(default_factory=Counter)  # (block size, tokens gained)

    def add(self, completion: Completion) -> None:
        """Count the passes of an answer; plain ones have nothing to accept."""
        both = zip(completion.block_sizes, completion.acceptance_lengths, strict=True)
        self.passes.update(pass_ for pass_ in both if pass_[0] > 1)

    @property
    def count(self) -> int:
        """Passes with drafted tokens."""
        return self.passes.total()

    @property
    def acceptance_length(self) -> float:
        """Mean tokens gained: accepted ones, and one of the target's own; 1 without a pass."""
        return sum(length * n for (_, length), n in self.passes.items()) / self.count if self.count else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        drafted = sum((size - 1) * n for (size, _), n in self.passes.items())
        return sum((length - 1) * n for (_, length), n in self.passes.items()) / drafted if drafted else 0.0

    def reached(self, position: int) -> tuple[int, int]:
        """Of the passes that drafted a token at `position` (from 1): how many kept it, and how many there were."""
        kept = sum(n for (size, length), n in self.passes.items() if size > position and length > position)
        return kept, sum(n for (size, _), n in self.passes.items() if size > position)

    @property
    def positions(self) -> range:
        """1, 2, … up to the last drafted one."""
        return range(1, max((size for size, _ in self.passes), default=1))

    @property
    def by_position(self) -> list[float]:
        """For each position, the share of passes that kept its token (and so all before)."""
        return [kept / total for kept, total in map(self.reached, self.positions)]

    @property
    def conditional(self) -> list[float]:
        """For each position, the share of tokens kept where all before were kept; ends where none was."""
        found, before = list[float](), self.count
        for position in self.positions:
            kept, total = self.reached(position)
            before = min(before, total)
            if not before:
                break
            found.append(kept / before)
            before = kept
        return found

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "passes": self.count,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "by_position": self.by_position,
            "conditional": self.conditional,
        }


def tally(completions: Iterable[Completion]) -> Tally:
    """Of several answers together."""
    found = Tally()
    for completion in completions:
        found.add(completion)
    return found


def merged(tallies: Sequence[Tally]) -> Tally:
    """All of them as one."""
    return Tally(passes=sum((t.passes for t in tallies), Counter[tuple[int, int]]()))
