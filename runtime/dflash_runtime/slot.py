"""A slot: one request's place in the engine, and the tokens whose cache rows it still holds."""

from dataclasses import dataclass, field
from typing import Literal

from dflash_engines.engine import History
from dflash_engines.errors import RequestError
from dflash_runtime.request import Request
from dflash_runtime.structured.constraint import Constraint

FinishReason = Literal["stop", "length"]


@dataclass(slots=True, kw_only=True)
class Slot:
    """Row p of the slot's caches belongs to `tokens[p]`; the first `rows` rows are written and right.

    There may be more rows than tokens: those of what was gained beyond a stop.
    """

    index: int
    request: Request | None = None
    tokens: list[int] = field(default_factory=list)  # prompt and what was generated
    rows: int = 0
    reused: int = 0  # prompt rows taken over from the request before
    turn: int = 0  # of all requests of the loop, which one this is
    constraint: Constraint | None = None  # of the request's structured output, up to the last token

    @property
    def joining(self) -> bool:
        """Whether prompt tokens wait to be computed."""
        return self.request is not None and self.rows < len(self.request.tokens)

    @property
    def decoding(self) -> bool:
        """Whether the slot takes part in iterations."""
        return self.request is not None and not self.joining

    @property
    def history(self) -> History:
        """The tokens so far, for rules that depend on them."""
        assert self.request is not None
        return History(tokens=self.tokens, prompt_length=len(self.request.tokens))

    def admit(self, request: Request, turn: int) -> None:
        """Take in the loop's `turn`-th request, keeping the rows of the prefix that it shares with the one before.

        The last prompt token is always computed again: its logits give the first new token.
        """
        self.reused = self.rows = shared_prefix(self.tokens[: self.rows], request.tokens[:-1])
        self.tokens = list(request.tokens)
        self.constraint = None if request.grammar is None else request.grammar.start(request.stop_token_ids)
        self.request, self.turn = request, turn

    def commit(self, gained: list[int], max_len: int) -> tuple[tuple[int, ...], FinishReason | None]:
        """Append what one target pass gained, cut at the first stop, the budget or the context's end.

        Raises RequestError when the request's rules allow no token, or one that its grammar doesn't. The last token
        needs no row of its own, so it may be the one after the `max_len` tokens a slot holds.
        """
        assert self.request is not None
        generated = len(self.tokens) - len(self.request.tokens)
        budget = min(self.request.max_new_tokens - generated, max_len + 1 - len(self.tokens))
        kept, reason = cut(gained, budget, self.request.stop_token_ids, self.constraint)
        self.tokens.extend(kept)
        return kept, reason

    def forget(self) -> None:
        """Hold no rows any more: nothing will be reused."""
        self.tokens, self.rows, self.reused = [], 0, 0


def shared_prefix(held: list[int], wanted: tuple[int, ...]) -> int:
    """How many leading tokens the two have in common."""
    shorter = min(len(held), len(wanted))
    return next((i for i in range(shorter) if held[i] != wanted[i]), shorter)


def _forbidden_by(constraint: Constraint | None) -> str:
    if constraint is not None and constraint.fault is not None:
        return f"response_format can't be held to any further, {constraint.fault}"
    return "logit_bias, bad_token_ids, min_tokens and the grammar together leave none"


def cut(
    gained: list[int], budget: int, stop_token_ids: frozenset[int], constraint: Constraint | None = None
) -> tuple[tuple[int, ...], FinishReason | None]:
    """The tokens to keep: up to the first stop token, itself included, and at most `budget`. A stop wins.

    A constraint takes in the tokens as they are kept; one that is complete is a stop too.
    """
    for i, token in enumerate(gained[:budget]):
        if token < 0:
            raise RequestError(f"every token is forbidden at this place: {_forbidden_by(constraint)}")
        if token in stop_token_ids:
            return tuple(gained[: i + 1]), "stop"
        if constraint is not None:
            constraint.commit(token)
            if constraint.complete:
                return tuple(gained[: i + 1]), "stop"
    return tuple(gained[:budget]), "length" if len(gained) >= budget else None
