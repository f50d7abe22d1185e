"""The tiny target: a llama of 1.7 M parameters, trained on conversations until most answers are right."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tiny_pair.conversations import conversations
from tiny_pair.tokenizer import END_OF_TEXT_ID, END_OF_TURN_ID, VOCAB_SIZE, encode_conversation

MAX_POSITIONS = 1024
POOL = 512  # conversations sorted by length before they are cut into batches
IGNORED = -100  # label of a token that isn't scored


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTraining:
    """How long and how fast; a step reads about `step_tokens` tokens, padding included."""

    steps: int = 2000
    step_tokens: int = 3072
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1
    seed: int = 0


def new_target(seed: int) -> LlamaForCausalLM:
    """The untrained model, in fp32."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=160,
            intermediate_size=416,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=MAX_POSITIONS,
            initializer_range=0.05,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=END_OF_TEXT_ID,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    )


def batches(tokenizer: PreTrainedTokenizerFast, config: TargetTraining) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and labels [B, S], padded on the right; only what the assistant writes is scored."""
    rng = Random(config.seed)
    stream = conversations(f"train/{config.seed}")
    while True:
        pool = [encode_conversation(tokenizer, turns) for turns in islice(stream, POOL)]
        pool = sorted((pair for pair in pool if len(pair[0]) <= MAX_POSITIONS), key=lambda pair: len(pair[0]))
        groups: list[list[tuple[list[int], list[bool]]]] = [[]]
        for pair in pool:
            if (len(groups[-1]) + 1) * len(pair[0]) > config.step_tokens:
                groups.append([])
            groups[-1].append(pair)
        rng.shuffle(groups)
        yield from (_padded(group) for group in groups)


def _padded(group: list[tuple[list[int], list[bool]]]) -> tuple[Tensor, Tensor]:
    width = max(len(ids) for ids, _ in group)
    tokens = torch.full((len(group), width), END_OF_TEXT_ID)
    labels = torch.full((len(group), width), IGNORED)
    for row, (ids, written) in enumerate(group):
        tokens[row, : len(ids)] = torch.tensor(ids)
        labels[row, : len(ids)] = torch.tensor(ids).where(torch.tensor(written), IGNORED)
    return tokens, labels


def learning_rate(step: int, config: TargetTraining) -> float:
    """Linear warm-up, then half a cosine down to a hundredth."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def train_target(
    model: LlamaForCausalLM,
    data: Iterator[tuple[Tensor, Tensor]],
    config: TargetTraining,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """AdamW on next-token cross-entropy; `on_step` hears of every step's loss."""
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    model.train()
    for step, (tokens, labels) in enumerate(islice(data, config.steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        on_step(step, loss.detach().item())
    model.eval()


def save_target(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """A plain Hugging Face folder in bf16; the end of a turn ends generation."""
    model.generation_config = GenerationConfig(eos_token_id=[END_OF_TURN_ID])
    model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
    tokenizer.save_pretrained(folder)
