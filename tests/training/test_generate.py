"""Batched generation against `transformers.generate`, and its states against a plain forward pass."""

from dataclasses import replace

import pytest
import torch

from dflash_training.generate import Answer, GenerateConfig, Generator, Request
from dflash_training.store import Example, Store
from dflash_training.target import Target
from tests.models.byte_tokenizer import END_OF_TURN_ID
from tests.training.conftest import TAPS, Material

PROMPTS = [tuple(range(10, 10 + length)) for length in (3, 17, 5, 30, 9, 2, 12)]
CONFIG = GenerateConfig(slots=3, max_prompt=32, max_new=20, refill=1)


def answers(target: Target, config: GenerateConfig, requests: list[Request]) -> dict[int, Answer]:
    return {answer.request.key: answer for answer in Generator(target, config).run(iter(requests))}


@pytest.mark.parametrize("refill", [1, 2])
def test_greedy_answers_are_those_of_transformers(material: Material, refill: int) -> None:
    requests = [Request(key=i, prompt_ids=prompt) for i, prompt in enumerate(PROMPTS)]
    ours = answers(material.target, replace(CONFIG, refill=refill), requests)
    for key, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        theirs = material.plain.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20,
            pad_token_id=END_OF_TURN_ID,
        )  # fmt: skip
        assert list(ours[key].response_ids) == theirs[0, len(prompt) :].tolist()


def test_sampled_answers_do_not_depend_on_the_batch(material: Material) -> None:
    requests = [Request(key=i, prompt_ids=prompt, temperature=1.5, seed=i % 3) for i, prompt in enumerate(PROMPTS)]
    together = answers(material.target, CONFIG, requests)
    alone = answers(material.target, replace(CONFIG, slots=1), requests)
    greedy = answers(material.target, CONFIG, [replace(request, temperature=0.0) for request in requests])
    assert {k: a.response_ids for k, a in together.items()} == {k: a.response_ids for k, a in alone.items()}
    assert any(together[k].response_ids != greedy[k].response_ids for k in together)


def plain_states(material: Material, example: Example) -> torch.Tensor:
    """Taps and last hidden state by one forward pass of the unmodified model."""
    ids = torch.tensor([example.response.token_ids[:-1]])
    with torch.no_grad():
        hidden = material.plain(ids, output_hidden_states=True).hidden_states
    return torch.stack([*(hidden[i + 1][0] for i in TAPS), hidden[-1][0]], 1)  # [T, N+1, H]


def test_states_of_every_answer_are_those_of_a_plain_pass(material: Material) -> None:
    store = Store((material.answers,))
    assert len(store.examples) == 96  # 64 prompts, every other with two turns
    for example in store.examples[::4]:
        torch.testing.assert_close(store.states(example).float(), plain_states(material, example), atol=0.05, rtol=0.02)


def test_a_second_turn_contains_the_first_answer(material: Material) -> None:
    responses = [example.response for example in Store((material.answers,)).examples]
    by_key = {response.key: response for response in responses}
    second = [response for response in responses if response.turn == 1]
    assert second
    for response in second:
        first = by_key[(response.source, response.id, 0, response.seed, response.temperature)]
        inside = first.token_ids[:-1]  # its end token is the template's own
        assert response.prompt_ids[: len(inside)] == inside
