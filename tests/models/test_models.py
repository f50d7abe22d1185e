"""The factories: the same model for the same seed, and folders that Hugging Face loads."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models.byte_tokenizer import END_OF_TEXT_ID, END_OF_TURN_ID, MASK_TOKEN_ID, byte_tokenizer
from tests.models.drafters import DrafterSpec, make_drafter
from tests.models.targets import FAMILIES, Family, random_target, save_target, target_config

TEXT = "Zwölf Äpfel, 3 · 4 = 12 🍎🙂\n\tsagte sie."
CHAT = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_target_loads_and_equals_the_one_in_memory(family: Family, tmp_path: Path) -> None:
    model = random_target(target_config(family), seed=5)
    loaded = AutoModelForCausalLM.from_pretrained(save_target(model, tmp_path))
    ids = torch.tensor([[7, 8, 9, 100]])
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert loaded.generation_config.eos_token_id == [END_OF_TURN_ID]
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token_id == END_OF_TEXT_ID


def test_seed_decides_the_target() -> None:
    config = target_config("llama")
    ids = torch.tensor([[7, 8, 9]])
    first, again, other = (random_target(config, seed=seed)(ids).logits for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.allclose(first, other)


def test_seed_decides_the_drafter(tmp_path: Path) -> None:
    config, spec = target_config("llama"), DrafterSpec()
    first, again, other = (
        load_file(make_drafter(tmp_path / str(i), config, spec, seed=seed) / "model.safetensors")
        for i, seed in enumerate((1, 1, 2))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_tokenizer_round_trips_any_text() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(TEXT)
    assert len(ids) == len(TEXT.encode()) and tokenizer.decode(ids) == TEXT


def test_chat_template_marks_turns() -> None:
    tokenizer = byte_tokenizer()
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == "<|turn|>user\nHello<|end_of_turn|>\n<|turn|>assistant\n"
    ids = tokenizer.encode(text)
    assert ids.count(END_OF_TURN_ID) == 1 and MASK_TOKEN_ID not in ids
