"""How a request's tokens are chosen; the slots of one batch may each have their own."""

from dataclasses import dataclass

from dflash_engines.contract import GREEDY, AcceptVariant, cheapest
from dflash_engines.controls import NEUTRAL, Controls
from dflash_engines.errors import RequestError

GREEDY_BELOW = 1e-5  # temperatures that mean: take the likeliest token
MAX_SEED = 2**60 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """Filters apply after the temperature, in the order top_k, top_p, min_p. Raises RequestError for a wrong value."""

    temperature: float = 0.0
    top_k: int = 0  # tokens kept, those equal to the last one included; 0 keeps all
    top_p: float = 1.0  # probability kept by the likeliest tokens; 1 keeps all
    min_p: float = 0.0  # least probability, as a part of the likeliest token's
    seed: int = 0  # the same seed gives the same tokens, with and without the drafter
    draft_temperature: float = 0.0  # with which the drafter draws, by the same noise; 0: it takes its likeliest token
    denoise_steps: int = 1  # launches of the drafter for each block; neither this nor the one above changes a token
    controls: Controls = NEUTRAL

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0 <= self.temperature < float("inf"), "a finite number from 0")
        _check(
            "top_k", self.top_k, type(self.top_k) is int and 0 <= self.top_k < 2**31, "0 (off) or a number of tokens"
        )
        _check("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0, at most 1")
        _check("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "within 0..1")
        _check(
            "seed", self.seed, type(self.seed) is int and 0 <= self.seed <= MAX_SEED, "a whole number within 0..2^60-1"
        )

        _check("draft_temperature", self.draft_temperature, 0.0 <= self.draft_temperature < float("inf"),
               "a finite number from 0")  # fmt: skip
        _check("denoise_steps", self.denoise_steps, type(self.denoise_steps) is int and self.denoise_steps >= 1,
               "a whole number of at least 1")  # fmt: skip

    @property
    def draws_drafts(self) -> bool:
        """Whether the drafter is to draw."""
        return self.draft_temperature >= GREEDY_BELOW

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, and the rest of the parameters does not matter."""
        return self.temperature < GREEDY_BELOW

    @property
    def variant(self) -> AcceptVariant:
        """The cheapest accept program that can do this."""
        filters = self.top_k > 0 or self.top_p < 1.0
        choice = GREEDY if self.greedy else AcceptVariant(sampling=True, filters=filters)
        return cheapest((choice, self.controls.needs))


def _check(name: str, value: float, right: bool, wanted: str) -> None:
    if not right:
        raise RequestError(f"{name} must be {wanted}, not {value}")


LIKELIEST = SamplingParameters()
