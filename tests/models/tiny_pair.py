"""The trained tiny pair of `models/tiny`, and how well its drafter guesses, by the reference loop.

`python -m tests.models.tiny_pair` prints the figures of the model card.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tests.reference.reference_drafter import ReferenceDrafter
from tests.reference.reference_loop import ReferenceResult, reference_loop

FOLDER = Path(__file__).parents[2] / "models" / "tiny"
TARGET, DRAFTER, PROMPTS = FOLDER / "target", FOLDER / "drafter", FOLDER / "prompts.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyPair:
    """Target and drafter in fp32, ready for the reference loop."""

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    drafter: ReferenceDrafter
    stop_ids: tuple[int, ...]

    def encode(self, question: str) -> list[int]:
        """Prompt ids of a single question, through the chat template."""
        messages = [{"role": "user", "content": question}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer.encode(str(text), add_special_tokens=False))

    def answer(self, question: str, *, max_new_tokens: int = 160, block_size: int = 8) -> ReferenceResult:
        """The reference loop's whole answer."""
        ids = self.encode(question)
        return reference_loop(self.target, self.drafter, ids, max_new_tokens, block_size, self.stop_ids)


@cache
def load_tiny_pair() -> TinyPair:
    """Load once; callers must not change it."""
    target = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    target.eval()
    return TinyPair(
        target=target,
        tokenizer=AutoTokenizer.from_pretrained(TARGET),
        drafter=ReferenceDrafter.from_folder(DRAFTER, target),
        stop_ids=tuple(target.generation_config.eos_token_id),
    )


def held_back_questions() -> list[str]:
    """First questions that the drafter was not trained on."""
    return [json.loads(line)["turns"][0] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]


def mean_acceptance_length(results: Sequence[ReferenceResult]) -> float:
    """Tokens emitted by verifying passes over the number of those passes."""
    lengths = [length for result in results for length in result.acceptance_lengths]
    return sum(lengths) / len(lengths)


def main() -> None:
    """Print the model card's figures."""
    pair = load_tiny_pair()
    results = [pair.answer(question) for question in held_back_questions()]
    lengths = Counter(length for result in results for length in result.acceptance_lengths)
    passes, tokens = lengths.total(), sum(len(result.token_ids) for result in results)
    shares = {length: round(lengths[length] / passes, 3) for length in sorted(lengths)}
    reached = {k: round(sum(lengths[n] for n in lengths if n > k) / passes, 3) for k in range(1, 8)}
    typer.echo(f"{len(results)} answers, {tokens} tokens, {passes} verifying passes")
    typer.echo(f"mean acceptance length {mean_acceptance_length(results):.2f}")
    typer.echo(f"share of passes by acceptance length {shares}")
    typer.echo(f"share of passes that accept draft position k {reached}")


if __name__ == "__main__":
    main()
