"""The block size of each iteration: the one that gains most tokens a second, by cost table and running acceptance.

One size holds for the whole batch. Any sequence of sizes gives the same tokens; only time is at stake.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dflash_runtime.acceptance import Acceptance
from dflash_runtime.cost_table import Costs, CostTable

FIRST_GUESS = 0.6  # of the first position's rate, before anything was drafted on this engine
GUESS_WEIGHT = 4.0  # passes that the first guess counts for
REQUEST_MEMORY = 64.0  # passes
HISTORY_MEMORY = 400.0
HISTORY_WEIGHT = 1.5  # passes that the engine's history counts for in a request: little, since texts differ
PROBE_SHARE = 0.01  # of the time without drafting, spent on finding out whether drafting has begun to pay
ACCEPT_MEMORY = 8.0  # passes
_SAME_LENGTH = 64  # tokens within which costs are taken as equal


class BlockSizes:
    """Chooses for the slots of one engine."""

    def __init__(self, costs: CostTable) -> None:
        self._table = costs
        self._known: dict[tuple[int, int], Costs] = {}
        self._sizes = np.array(costs.block_sizes)
        self._positions = costs.block_sizes[-1] - 1
        self._history = Acceptance(self._positions, memory=HISTORY_MEMORY)
        self._slots: dict[int, Acceptance] = {}
        self._accept_factor = 1.0  # how much dearer the rules in use are than the greedy one
        self._credit = 0.0  # seconds that probes may cost

    def admit(self, slot: int) -> None:
        """A new request begins in `slot`: what the one before showed is in the history only."""
        self._slots[slot] = Acceptance(self._positions, memory=REQUEST_MEMORY)

    def observe(self, slot: int, *, block_size: int, gained: int) -> None:
        """What a pass of `block_size` gained in `slot`, the target's own token included."""
        if block_size > 1:
            for acceptance in (self._slots[slot], self._history):
                acceptance.observe(drafted=block_size - 1, kept=gained - 1)

    def choose(self, lengths: Mapping[int, int], *, denoise_steps: int = 1) -> int:
        """The block size for the slots in `lengths`, which gives each one's live tokens."""
        seconds = self._costs(lengths).total(denoise_steps, self._accept_factor)
        tokens = np.sum([self._expected(slot) for slot in lengths], axis=0)
        best = int(np.argmax(tokens / seconds))
        if best == 0 and len(self._sizes) > 1:
            best = self._probe(tokens, seconds)
        return int(self._sizes[best])

    def observe_accept(self, lengths: Mapping[int, int], *, block_size: int, seconds: float) -> None:
        """What accepting took in a pass over the slots in `lengths`: rules that filter cost much more than others."""
        place = int(np.searchsorted(self._sizes, block_size))
        known = float(self._costs(lengths).accept[place]) if block_size in self._sizes else 0.0
        if known > 0:
            self._accept_factor += (seconds / known - self._accept_factor) / ACCEPT_MEMORY

    def _costs(self, lengths: Mapping[int, int]) -> Costs:
        key = (len(lengths), sum(lengths.values()) // len(lengths) // _SAME_LENGTH)
        if key not in self._known:
            self._known[key] = self._table.at(slots=key[0], length=(key[1] + 0.5) * _SAME_LENGTH)
        return self._known[key]

    def _probe(self, tokens: NDArray[np.float64], seconds: NDArray[np.float64]) -> int:
        """Plain decoding pays best; now and then, the best of the others is tried for a small share of the time."""
        self._credit += PROBE_SHARE * float(seconds[0])
        other = 1 + int(np.argmax(tokens[1:] / seconds[1:]))
        loss = float(seconds[other] - tokens[other] / tokens[0] * seconds[0])
        if loss > self._credit:
            return 0
        self._credit -= loss
        return other

    def _expected(self, slot: int) -> NDArray[np.float64]:
        """Tokens that a pass of each size gains in `slot`: its own, and each draft whose forerunners are right."""
        history = self._history.chained_rates(FIRST_GUESS, GUESS_WEIGHT)
        rates = self._slots[slot].rates(history, HISTORY_WEIGHT)
        kept = np.concatenate([[0.0], np.cumsum(np.cumprod(rates))])
        expected: NDArray[np.float64] = 1 + kept[self._sizes - 1]
        return expected
