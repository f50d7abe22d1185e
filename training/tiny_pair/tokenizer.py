"""The tiny target's tokenizer: byte-level BPE with single digits, and a chat template."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tiny_pair.conversations import Turn

VOCAB_SIZE = 1024
SPECIAL_TOKENS = ("<|end_of_text|>", "<|turn|>", "<|end_of_turn|>", "<|mask|>")
END_OF_TEXT_ID, TURN_ID, END_OF_TURN_ID, MASK_TOKEN_ID = range(4)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end_of_turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges. The mask token is in the vocabulary and in no text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end_of_text|>",
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def encode_conversation(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn]) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them the assistant writes, the end of its turns included."""
    ids: list[int] = []
    written: list[bool] = []
    for turn in turns:
        head = tokenizer.encode(f"<|turn|>{turn.role}\n", add_special_tokens=False)
        body = [*tokenizer.encode(turn.content, add_special_tokens=False), END_OF_TURN_ID]
        tail = tokenizer.encode("\n", add_special_tokens=False)
        ids += head + body + tail
        written += [False] * len(head) + [turn.role == "assistant"] * len(body) + [False] * len(tail)
    return ids, written


def render(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn]) -> str:
    """The conversation as the chat template writes it."""
    return str(tokenizer.apply_chat_template([asdict(turn) for turn in turns], tokenize=False))
