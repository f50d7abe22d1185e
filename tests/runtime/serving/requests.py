"""Requests of the scripted pair, what each must give, and readers that keep what they are told."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from dflash_engines.errors import DflashError
from dflash_runtime.answer import Answer
from dflash_runtime.completion import Completion, Step
from dflash_runtime.detokenize import detokenizers
from dflash_runtime.request import Request
from dflash_runtime.serving.generation import Event, Generation, Urgency
from tests.engines.scripted_bundle import BLOCK_SIZE, MAX_LEN, byte_tokenizer
from tests.engines.scripted_pair import POISON_ID, SCRIPT, plain_answer

new_detokenizer = detokenizers(byte_tokenizer())
IDS = st.integers(0, POISON_ID - 1)
REQUESTS = st.builds(
    lambda tokens, new, stops, size: request(
        tokens, max_new_tokens=new, stop_token_ids=frozenset(stops), block_size=size
    ),
    # Few different beginnings, so that prefixes are shared often.
    st.lists(st.sampled_from([5, 6]), max_size=12).flatmap(
        lambda head: st.lists(IDS, min_size=1, max_size=MAX_LEN - 12).map(lambda tail: head + tail)
    ),
    st.integers(1, MAX_LEN),
    st.sets(st.sampled_from(sorted(set(SCRIPT))) | IDS, max_size=2),
    st.integers(1, BLOCK_SIZE),
)


def request(tokens: Sequence[int], **fields: object) -> Request:
    defaults: dict[str, Any] = {"max_new_tokens": 12, "stop_token_ids": frozenset(), "block_size": BLOCK_SIZE}
    return Request(tokens=tuple(tokens), **(defaults | fields))


def solo(request: Request) -> tuple[list[int], str]:
    """Tokens and finish reason of a plain loop."""
    return plain_answer(list(request.tokens), request.max_new_tokens, request.stop_token_ids, MAX_LEN)


def answer_of(completion: Completion) -> tuple[list[int], str]:
    return list(completion.token_ids), completion.finish_reason


class Reader:
    """Collects what one generation is told."""

    def __init__(self, asked: Request, **urgency: Any) -> None:
        self.request = asked
        self.steps: list[Step] = []
        self.end: Completion | DflashError | None = None
        self.generation = Generation(
            answer=Answer(asked, new_detokenizer()), deliver=self._take, urgency=Urgency(**urgency)
        )

    def _take(self, event: Event) -> None:
        assert self.end is None, "told something after the end"
        if isinstance(event, Step):
            self.steps.append(event)
        else:
            self.end = event

    @property
    def completion(self) -> Completion:
        assert isinstance(self.end, Completion), self.end
        return self.end

    @property
    def right(self) -> bool:
        """Whether it got what it gets alone."""
        told = [token for step in self.steps for token in step.token_ids]
        return answer_of(self.completion) == solo(self.request) and told == list(self.completion.token_ids)
