"""Answers of the target to many prompts at once: slots that refill as answers end.

`transformers.generate` waits for the longest answer of a batch and joins its cache anew at every token;
here every pass makes one token in every slot. The hidden states that a drafter is trained on pass by anyway,
so they are given back with each answer.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

from dflash_training.sampling import choose_greedy, choose_sampled
from dflash_training.slots import DecodeSide, PrefillSide, SlotArena
from dflash_training.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be answered; `key` comes back with the answer."""

    key: int
    prompt_ids: tuple[int, ...]
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Token ids of an answer, its end token included when reached.

    `states` [T, N+1, H] in bf16: the taps and the last hidden state of every token of prompt and answer but
    the answer's last, which the target never read.
    """

    request: Request
    response_ids: tuple[int, ...]
    states: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateConfig:
    """How many answers at once, how long, and which layers' outputs to keep (none: no states).

    `refill`: so many slots are filled together, once they are free.
    """

    slots: int = 128
    max_prompt: int = 320
    max_new: int = 256
    refill: int = 12
    target_layer_ids: tuple[int, ...] = ()


def stack_states(out: BaseModelOutputWithPast, target_layer_ids: tuple[int, ...]) -> Tensor:
    """Taps and last hidden state side by side: [B, S, N+1, H] in bf16. Tap i is `hidden_states[i + 1]`."""
    assert out.hidden_states is not None and out.last_hidden_state is not None
    taps = [out.hidden_states[i + 1] for i in target_layer_ids]
    return torch.stack([*taps, out.last_hidden_state], dim=2).to(torch.bfloat16)


class _Slot:
    """The answer being written in one slot."""

    def __init__(self, request: Request, first: int) -> None:
        self.request, self.tokens = request, [first]

    @property
    def position(self) -> int:
        """Row of the newest token."""
        return len(self.request.prompt_ids) + len(self.tokens) - 1


class Generator:
    """Batched generation over a fixed arena. `run` yields answers as they end, in no fixed order."""

    def __init__(self, target: Target, config: GenerateConfig) -> None:
        self.target, self.config = target, config
        rows = config.max_prompt + config.max_new + 1
        self.arena = SlotArena(target.model.config, config.slots, rows, target.dtype, target.device)
        self.low_head = target.head.to(target.dtype)
        self.ends = _end_tokens(target)
        self.slots: list[_Slot | None] = [None] * config.slots
        shape = (config.slots, rows, len(config.target_layer_ids) + 1, target.model.config.hidden_size)
        self.states = (
            torch.zeros(shape, dtype=torch.bfloat16, device=target.device) if config.target_layer_ids else None
        )

    @torch.inference_mode()
    def run(self, requests: Iterator[Request]) -> Iterator[Answer]:
        """Answer every request. Prompts must have at most `max_prompt` tokens."""
        waiting, refill = _Lookahead(requests), min(self.config.refill, self.config.slots)
        while True:
            free = [i for i, slot in enumerate(self.slots) if slot is None]
            if len(free) >= refill and (batch := waiting.take(refill)):
                self._prefill(free[: len(batch)], batch)
            elif len(free) == len(self.slots):
                return
            else:
                self._decode()
            yield from self._collect()

    def _forward(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: object) -> tuple[Tensor, Tensor | None]:
        """Last hidden state [B, S, H] and, where wanted, the states of `stack_states`."""
        out = self.target.read(tokens, positions, mask, cache, states=self.states is not None)
        assert out.last_hidden_state is not None
        states = None if self.states is None else stack_states(out, self.config.target_layer_ids)
        return out.last_hidden_state, states

    def _prefill(self, free: list[int], batch: list[Request]) -> None:
        lengths = torch.tensor([len(request.prompt_ids) for request in batch], device=self.target.device)
        width = int(lengths.max())
        padded = [[*request.prompt_ids, *[0] * (width - len(request.prompt_ids))] for request in batch]
        tokens = torch.tensor(padded, device=self.target.device)  # [n, S]
        positions = torch.arange(width, device=self.target.device)[None].expand(len(batch), -1)
        mask = torch.ones(width, width, dtype=torch.bool, device=self.target.device).tril()[None, None]
        mask = mask.expand(len(batch), 1, -1, -1)
        last, states = self._forward(tokens, positions, mask, PrefillSide(self.arena, free))
        if self.states is not None and states is not None:
            self.states[torch.tensor(free), :width] = states
        rows = torch.arange(len(batch), device=self.target.device)
        chosen = self._choose(last[rows, lengths - 1], batch, lengths).tolist()
        for slot, request, token in zip(free, batch, chosen, strict=True):
            self.slots[slot] = _Slot(request, token)

    def _decode(self) -> None:
        rows = [(slot.tokens[-1], slot.position) if slot else (0, 0) for slot in self.slots]
        tokens, positions = torch.tensor(rows, device=self.target.device).unbind(1)
        cache = DecodeSide(self.arena, positions, max(position for _, position in rows) + 1)
        last, states = self._forward(tokens[:, None], positions[:, None], cache.mask(), cache)
        if self.states is not None and states is not None:
            self.states[cache.slots, positions] = states[:, 0]
        idle = Request(key=-1, prompt_ids=())
        requests = [slot.request if slot else idle for slot in self.slots]
        for slot, token in zip(self.slots, self._choose(last[:, 0], requests, positions + 1).tolist(), strict=True):
            if slot:
                slot.tokens.append(token)

    def _choose(self, hidden: Tensor, requests: list[Request], positions: Tensor) -> Tensor:
        if all(request.temperature == 0 for request in requests):
            return choose_greedy(hidden, self.target.head, self.low_head)
        device = self.target.device
        temperature = torch.tensor([request.temperature for request in requests], device=device)
        seeds = torch.tensor([request.seed for request in requests], device=device)
        return choose_sampled(
            hidden, self.target.head, self.low_head, temperature=temperature, seeds=seeds, positions=positions
        )

    def _collect(self) -> Iterator[Answer]:
        """Free the slots whose answer has ended."""
        for index, slot in enumerate(self.slots):
            if slot and (slot.tokens[-1] in self.ends or len(slot.tokens) == self.config.max_new):
                self.slots[index] = None
                states = None if self.states is None else self.states[index, : slot.position].cpu().clone()
                yield Answer(request=slot.request, response_ids=tuple(slot.tokens), states=states)


class _Lookahead:
    """Takes requests in small batches of like length, so that a prefill pads little."""

    WINDOW = 8

    def __init__(self, requests: Iterator[Request]) -> None:
        self.requests, self.window = requests, deque[Request]()

    def take(self, count: int) -> list[Request]:
        if not self.window:
            ahead = [request for _, request in zip(range(count * self.WINDOW), self.requests, strict=False)]
            self.window.extend(sorted(ahead, key=lambda request: len(request.prompt_ids)))
        return [self.window.popleft() for _ in range(min(count, len(self.window)))]


def _end_tokens(target: Target) -> frozenset[int]:
    """Ids that end an answer, as the target's generation config names them."""
    ends = target.model.generation_config.eos_token_id
    return frozenset([ends] if isinstance(ends, int) else ends or [])
