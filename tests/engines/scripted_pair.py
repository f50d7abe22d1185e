"""A pair whose every token can be worked out by hand, yet depends on every cache row: a stale row shows.

The target's token after position p is script(p) or, when the checksum of tokens 0..p is a multiple of 4,
another one made from the checksum. The drafter knows the script, and the checksum up to its anchor as far as
its context rows are right. This module imports nothing of the product; the ONNX form is next to it.
"""

from collections.abc import Collection, Sequence

VOCAB_SIZE = 260
MASK_TOKEN_ID = 2
POISON_ID = 259  # the logits of its row are NaN
SCRIPT = (40, 75, 200, MASK_TOKEN_ID, 12, 130, 7, 99, 40, 61, 180)  # the mask's id is an ordinary token too
STOP_TOKEN_IDS = (130,)


def weight(position: int) -> int:
    """How much a token counts in the checksum."""
    return position * 7 % 5 + 1


def checksum(tokens: Sequence[int]) -> int:
    return sum((token + 1) * weight(position) for position, token in enumerate(tokens))


def target_token(total: int, position: int) -> int:
    """The target's token after `position`, given the checksum of all tokens up to there."""
    return SCRIPT[position % len(SCRIPT)] if total % 4 else (total * 3 + position) % (VOCAB_SIZE - 1)


def draft_block(context: Sequence[int], anchor: int, size: int) -> list[int]:
    """The block: its first guess fails when the checksum is a multiple of 7, the rest is the script."""
    start, total = len(context), checksum([*context, anchor])
    first = (target_token(total, start) + (total % 7 == 0)) % (VOCAB_SIZE - 1)
    return [anchor, first, *(SCRIPT[(start + i) % len(SCRIPT)] for i in range(1, size - 1))][:size]


def plain_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """The next `count` tokens of the target alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(target_token(checksum(tokens), len(tokens) - 1))
    return tokens[len(prompt) :]


def plain_answer(
    prompt: Sequence[int], max_new_tokens: int, stop_token_ids: Collection[int], max_len: int
) -> tuple[list[int], str]:
    """Token ids and finish reason of a plain loop, one token at a time."""
    answer: list[int] = []
    while True:
        answer.extend(plain_tokens([*prompt, *answer], 1))
        if answer[-1] in stop_token_ids:
            return answer, "stop"
        if len(answer) == max_new_tokens or len(prompt) + len(answer) == max_len + 1:
            return answer, "length"


def acceptance_lengths(prompt: Sequence[int], answer_length: int, block_size: int) -> list[int]:
    """What each verifying pass gains, until the answer is that long: the first token is the prefill's."""
    future = plain_tokens(prompt, answer_length + block_size)
    lengths, done = [], 1
    while done < answer_length:
        block = draft_block([*prompt, *future[: done - 1]], future[done - 1], block_size)
        right = future[done - 1 : done - 1 + block_size]
        accepted = next((i for i in range(1, block_size) if block[i] != right[i]), block_size) - 1
        lengths.append(accepted + 1)
        done += accepted + 1
    return lengths
