"""A prompt as the target is asked in use: through its chat template, where it has one."""

from transformers import PreTrainedTokenizerBase


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of one question, up to where the answer begins."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": text}]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return list(tokenizer.encode(text, add_special_tokens=False))
