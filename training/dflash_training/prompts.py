"""Prompts from JSONL files, mixed evenly and put through the target's chat template."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from dflash_training.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """A file of prompts and how many of them to use; None: all."""

    path: Path
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The user's turns of one prompt and the answers given so far."""

    id: str
    source: str
    turns: tuple[str, ...]
    answers: tuple[str, ...] = ()

    def messages(self) -> list[dict[str, str]]:
        """All turns up to the one to be answered now, with the answers between."""
        messages: list[dict[str, str]] = []
        for turn, answer in zip(self.turns, self.answers, strict=False):
            messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        return [*messages, {"role": "user", "content": self.turns[len(self.answers)]}]


def parse_source(text: str) -> PromptSource:
    """`FILE` or `FILE:COUNT`."""
    path, _, count = text.rpartition(":")
    if path and count.isdigit():
        return PromptSource(path=Path(path), count=int(count))
    return PromptSource(path=Path(text))


def _read(source: PromptSource) -> Iterator[Conversation]:
    if not source.path.is_file():
        raise TrainingError(f"{source.path}: no such prompt file; give JSONL with 'id' and 'turns'")
    with source.path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            try:
                row = json.loads(line)
                yield Conversation(id=str(row["id"]), source=source.path.stem, turns=tuple(row["turns"]))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise TrainingError(
                    f"{source.path}, line {number}: {error!r}; every line needs 'id' and 'turns'"
                ) from error


def load_prompts(sources: Sequence[PromptSource], *, seed: int) -> list[Conversation]:
    """A seeded part of every source, spread so that any beginning of the list has about the same mix."""
    placed: list[tuple[float, str, Conversation]] = []
    for source in sources:
        generator = random.Random(f"{seed}/{source.path.stem}")
        rows = list(_read(source))
        generator.shuffle(rows)
        rows = rows[: source.count]
        placed += [((i + generator.random()) / len(rows), row.id, row) for i, row in enumerate(rows)]
    return [row for _, _, row in sorted(placed, key=lambda item: item[:2])]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, conversation: Conversation) -> list[int]:
    """Token ids of the chat template up to where the target's answer begins."""
    if tokenizer.chat_template is None:
        text = "\n".join(message["content"] for message in conversation.messages())
        return list(tokenizer(text)["input_ids"])
    text = str(tokenizer.apply_chat_template(conversation.messages(), tokenize=False, add_generation_prompt=True))
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
