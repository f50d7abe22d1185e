"""A tiny target trained for seconds on sentences from templates, so that its answers can be guessed."""

import json
import random
from pathlib import Path

import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.models.byte_tokenizer import END_OF_TURN_ID, byte_tokenizer
from tests.models.targets import random_target, save_target, target_config

COLOURS = ("red", "green", "blue", "black", "white", "amber")
SAYINGS = {
    "river": "It runs down to the sea at night.",
    "horse": "He eats hay and sleeps on his feet.",
    "tower": "Nobody has climbed it for a year.",
    "cloud": "Rain will come from it before noon.",
}
STEPS = 240


def question(generator: random.Random) -> tuple[str, str]:
    """A question and the one right answer."""
    colour, thing = generator.choice(COLOURS), generator.choice(list(SAYINGS))
    return f"A {colour} {thing}?", f"The {thing} is {colour}. {SAYINGS[thing]}"


def dialogue(tokenizer: PreTrainedTokenizerFast, generator: random.Random) -> list[int]:
    """Token ids of one question with its answer."""
    asked, answered = question(generator)
    messages = [{"role": "user", "content": asked}]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return [*tokenizer(text)["input_ids"], *tokenizer(answered)["input_ids"], END_OF_TURN_ID]


def train_target() -> PreTrainedModel:
    """A llama of 0.3 M parameters that has learnt the answers."""
    settings = {"hidden_size": 96, "intermediate_size": 192, "head_dim": 24}
    model = random_target(target_config("llama", tied=True, settings=settings), favoured_tokens=0)
    torch.manual_seed(0)
    model.apply(model._init_weights)
    generator = random.Random(0)
    tokenizer = byte_tokenizer()
    rows = [torch.tensor(dialogue(tokenizer, generator)) for _ in range(128)]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, STEPS)
    for _ in range(STEPS):
        batch = tokens[torch.randint(len(tokens), (8,))]
        logits = model(batch.clamp(min=0)).logits
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    model.eval()
    return model


def write_prompts(path: Path, count: int, seed: int) -> Path:
    """Prompts in the trainer's format; every other one has a second turn."""
    generator = random.Random(seed)
    rows = [{"id": f"p{i}", "turns": [question(generator)[0] for _ in range(1 + i % 2)]} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_quick_target(folder: Path) -> Path:
    """Train and save the target."""
    return save_target(train_target(), folder)
