"""Tiny random Hugging Face targets: every family and every RoPE scaling that the product compiles.

Weights are drawn so that greedy decoding is lively: logits spread over several units, and a tied head doesn't
just repeat its input.
"""

import copy
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from tests.models.byte_tokenizer import (
    END_OF_TEXT_ID,
    END_OF_TURN_ID,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    byte_tokenizer,
)

Family = Literal["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"]
Rope = Literal["default", "linear", "llama3", "yarn"]

FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3")
ROPES: tuple[Rope, ...] = ("default", "linear", "llama3", "yarn")
SLIDING_WINDOW = 12  # tokens, the query's own position included
HIDDEN_SIZE = 48
NUM_LAYERS = 4
LIVELY_SEED = 7  # every family then writes at least five different tokens, none of them nearly tied

ROPE_PARAMETERS: dict[Rope, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
    },
}

CONFIGS: dict[Family, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
}

MIXED_LAYERS = ["sliding_attention", "full_attention"] * (NUM_LAYERS // 2)

FAMILY_SETTINGS: dict[Family, dict[str, Any]] = {
    "llama": {"head_dim": 12},
    "qwen2": {},  # biases on q, k, v are part of the family
    "qwen3": {"head_dim": 16},
    "mistral": {"head_dim": 12, "sliding_window": SLIDING_WINDOW},
    "gemma2": {
        "head_dim": 16,
        "sliding_window": SLIDING_WINDOW,
        "layer_types": MIXED_LAYERS,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 40.0,
    },
    "gemma3": {
        "head_dim": 16,
        "sliding_window": SLIDING_WINDOW,
        "layer_types": MIXED_LAYERS,
        "query_pre_attn_scalar": 20,
    },
}


def target_config(
    family: Family, *, rope: Rope = "default", tied: bool = False, settings: dict[str, Any] | None = None
) -> PreTrainedConfig:
    """Configuration of a tiny target; `settings` are keys of the family's config, such as attention_bias."""
    scaled = dict(ROPE_PARAMETERS[rope])
    local = dict(ROPE_PARAMETERS["default"], rope_theta=1000.0)
    return CONFIGS[family](
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": HIDDEN_SIZE,
            "intermediate_size": 2 * HIDDEN_SIZE,
            "num_hidden_layers": NUM_LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": tied,
            "bos_token_id": None,
            "pad_token_id": None,
            "eos_token_id": END_OF_TEXT_ID,
            "rope_parameters": (
                {"sliding_attention": local, "full_attention": scaled} if family == "gemma3" else scaled
            ),
        }
        | FAMILY_SETTINGS[family]
        | (settings or {})
    )


def random_target(config: PreTrainedConfig, *, seed: int = LIVELY_SEED, favoured_tokens: int = 6) -> PreTrainedModel:
    """A target in fp32 with random weights, the same for the same seed.

    `favoured_tokens` ids get larger head rows than the rest and so most of the argmaxes, which lets a random
    drafter guess right now and then: acceptance lengths vary although nothing was trained.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            copy.deepcopy(config), dtype=torch.float32, attn_implementation="eager"
        ).eval()
        for name, weight in model.named_parameters():
            randomise(name, weight)
        favour(model.get_output_embeddings().weight, favoured_tokens)
    return model


@torch.no_grad()
def randomise(name: str, weight: torch.Tensor) -> None:
    """Draw one parameter: matrices keep their input's scale, norms and biases stray from 1 and 0.

    Small embeddings and random signs in the last norm keep a tied head from repeating its input.
    """
    if weight.ndim == 2:
        gain = 0.3 if "embed" in name or "lm_head" in name else 1.5
        weight.normal_(0.0, gain * weight.shape[1] ** -0.5)
    elif name == "model.norm.weight":
        weight.add_(6.0 * torch.randn_like(weight) - 1.0)  # starts at 1; in gemma at 0, and 1 is added
    elif "norm" in name:
        weight.add_(torch.randn_like(weight), alpha=0.2)
    else:
        weight.normal_(0.0, 0.3)


@torch.no_grad()
def favour(head: torch.Tensor, count: int) -> None:
    """Make `count` rows of the head, drawn among the ordinary tokens, four times as large."""
    favoured = len(SPECIAL_TOKENS) + torch.randperm(len(head) - len(SPECIAL_TOKENS))[:count]
    head[favoured] *= 4.0


def save_target(model: PreTrainedModel, folder: Path) -> Path:
    """Write a complete Hugging Face folder: weights, configs, tokenizer with chat template.

    The end of a turn stops generation by generation_config.json, the end of the text by the tokenizer.
    """
    model.generation_config = GenerationConfig(eos_token_id=[END_OF_TURN_ID])
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
