"""How a request's tokens are chosen; the slots of one batch may each have their own."""

from dataclasses import dataclass

from dflash_engines.contract import GREEDY, AcceptVariant, cheapest
from dflash_engines.controls import NEUTRAL, Controls
from dflash_engines.parameter_values import real, whole

GREEDY_BELOW = 1e-5  # temperatures that mean: take the likeliest token
MAX_SEED = 2**60 - 1
_HOTTEST, _LEAST = 3e38, 1e-38  # what float32 holds


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
        set_field = object.__setattr__  # frozen: plain Python numbers from here on
        for name, low, high, wanted in (
            ("temperature", 0.0, _HOTTEST, "a finite number from 0"),
            ("top_p", _LEAST, 1.0, "a number above 0, at most 1"),
            ("min_p", 0.0, 1.0, "a number within 0..1"),
            ("draft_temperature", 0.0, _HOTTEST, "a finite number from 0"),
        ):
            set_field(self, name, real(name, getattr(self, name), low, high, wanted))
        set_field(self, "top_k", whole("top_k", self.top_k, 0, 2**31 - 1, "0 (off) or a number of tokens"))
        set_field(self, "seed", whole("seed", self.seed, 0, MAX_SEED, "a whole number within 0..2^60-1"))
        steps = whole("denoise_steps", self.denoise_steps, 1, 2**31 - 1, "a whole number of at least 1")
        set_field(self, "denoise_steps", steps)

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


LIKELIEST = SamplingParameters()
