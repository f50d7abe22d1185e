"""One prompt with and without the drafter, on the same engine, in turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dflash_runtime.completion import Completion, Step, decoding_speed
from dflash_runtime.decoder import Decoder, finish
from dflash_runtime.prompt import Prompt
from dflash_runtime.request import Request

WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same answer, generated twice."""

    drafted: Completion
    plain: Completion  # the target alone, in calls padded to two rows

    @property
    def identical(self) -> bool:
        """Whether the drafter changed nothing, as promised."""
        return self.drafted.token_ids == self.plain.token_ids

    @property
    def speed_ratio(self) -> float | None:
        """See the function of the same name."""
        return speed_ratio([self])


def speed_ratio(comparisons: Sequence[Comparison]) -> float | None:
    """Tokens per second with the drafter over those without; above 1, drafting pays.

    None when no answer has a token after its first: there is no speed to compare.
    """
    plain = decoding_speed([comparison.plain for comparison in comparisons])
    return decoding_speed([comparison.drafted for comparison in comparisons]) / plain if plain else None


def compare(decoder: Decoder, request: Request, on_step: Callable[[Step], object]) -> Comparison:
    """Generate with the drafter, showing each step to `on_step`, then without. Neither reuses a prefix."""
    decoder.forget()
    drafted = finish(decoder.run(request), on_step)
    decoder.forget()
    return Comparison(drafted=drafted, plain=finish(decoder.run(replace(request, block_size=1))))


def warm_up(decoder: Decoder, prompt: Prompt) -> None:
    """A few tokens both ways, so that the first comparison doesn't pay for first touches of memory."""
    for block_size in (None, 1):
        decoder.complete(prompt, max_new_tokens=WARM_UP_TOKENS, block_size=block_size)
