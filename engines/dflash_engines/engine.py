"""What the decode loop asks of an engine, whether over host memory (`host_engine`) or over CUDA graphs.

An engine steps B slots together. It owns the caches and the slots' positions; text, stop rules and queues are others'.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash_engines.contract import Limits
from dflash_engines.sampling import LIKELIEST, SamplingParameters

if TYPE_CHECKING:
    from dflash_engines.bundle import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A request's tokens so far."""

    tokens: Sequence[int] = ()  # prompt and what was generated, the anchor of the next block included
    prompt_length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log-probabilities in the target's own distribution, before every rule."""

    logprob: NDArray[np.float32]  # [B, K] of the sampled tokens
    top_tokens: NDArray[np.int64]  # [B, K, TOP_LOGPROBS] the likeliest, best first
    top_logprobs: NDArray[np.float32]  # [B, K, TOP_LOGPROBS]

    @classmethod
    def among(cls, found: Mapping[str, NDArray[Any]]) -> "Logprobs | None":
        """Those among the outputs of an accept program; None when it has none."""
        if "logprob" not in found:
            return None
        return cls(**{name: found[name] for name in ("logprob", "top_tokens", "top_logprobs")})


Edit = Callable[[NDArray[np.int64]], None]  # writes into blocks [B, K], behind their anchors


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What one draft-target-accept pass found. Arrays are owned by the receiver."""

    block: NDArray[np.int64]  # [B, K] anchor and drafted tokens
    sampled: NDArray[np.int64]  # [B, K] the target's own token after each row; -1: its rules forbid all tokens
    accepted: NDArray[np.int64]  # [B] drafted tokens kept; tokens gained are accepted + 1
    finite: NDArray[np.bool_]  # [B] false: this slot's numbers overflowed
    active: NDArray[np.bool_]  # [B] false: not placed at the launch, or placed anew or parked since; ignore its row
    logprobs: Logprobs | None = None  # of the K rows; None when no slot asks for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds spent in the programs since the engine was loaded; the rest of the time was the host's."""

    prefill: float
    draft: float
    target: float
    accept: float


class Engine(Protocol):
    """Steps slots. Calls are made from one thread."""

    @property
    def bundle(self) -> "Bundle":
        """The bundle this engine runs."""
        ...

    @property
    def limits(self) -> Limits:
        """What this engine was loaded for: at most the bundle's max_len, and max_batch slots."""
        ...

    @property
    def timing(self) -> Timing:
        """Where the time went so far."""
        ...

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> None:
        """Write the caches of `slot` for one chunk of prompt tokens at rows start, start+1, …; no logits."""
        ...

    def finish_prefill(
        self,
        slot: int,
        tokens: Sequence[int],
        start: int,
        sampling: SamplingParameters = LIKELIEST,
        *,
        history: History | None = None,
        mask: NDArray[np.int32] | None = None,
    ) -> Iteration:
        """Like `prefill` for the prompt's last chunk; returns the first new token as an Iteration of B=1, K=1.

        `mask` [1, W] says which tokens may come first, where `sampling.controls.constrained`. Penalties and
        min_tokens need the `history`.
        """
        ...

    def place(
        self,
        slot: int,
        anchor: int,
        start: int,
        limit: int,
        sampling: SamplingParameters = LIKELIEST,
        *,
        history: History | None = None,
    ) -> None:
        """Let `slot` take part in iterations: its next block begins with `anchor` at row `start`.

        The anchor is the last token of the `history`, which penalties and min_tokens need.
        """
        ...

    def park(self, slot: int) -> None:
        """Take `slot` out of iterations; its caches stay for prefix reuse."""
        ...

    def clear(self, slot: int) -> None:
        """Zero the caches of `slot` (after non-finite numbers) and park it."""
        ...

    @property
    def denoises(self) -> bool:
        """Whether blocks can be drafted in more than one step (SamplingParameters.denoise_steps)."""
        ...

    @property
    def can_launch(self) -> bool:
        """Whether another iteration may be launched before the oldest is collected (run-ahead)."""
        ...

    def launch(self, block_size: int) -> None:
        """Begin one iteration over all placed slots; 1 decodes plainly, without the drafter.

        Not while a constrained slot is placed: then `begin` and `accept` take its place.
        """
        ...

    def begin(self, block_size: int, edit: Edit | None = None) -> NDArray[np.int64]:
        """Draft and begin the target's pass; returns the blocks [B,K], so that masks are computed while it runs.

        `edit` may first put other tokens in the place of drafted ones. Row j of a slot's mask says which tokens may
        follow block[:j+1]. Only `accept` or `discard` may come next.
        """
        ...

    def accept(self, masks: Mapping[int, NDArray[np.int32]]) -> None:
        """End what `begin` began, with a mask [K,W] for every constrained slot; then `collect` it.

        W words hold one bit a token, least significant first; 0 forbids. Rows that no token may follow, or that
        the grammar has not got to, may hold anything. Where all tokens are forbidden, `sampled` is -1.
        """
        ...

    def collect(self) -> Iteration:
        """Wait for the oldest launched iteration and return what it found."""
        ...

    def discard(self) -> None:
        """Drop what was launched and not collected; slots that go on must be placed again. Nothing launched is fine."""
        ...
