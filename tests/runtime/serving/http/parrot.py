"""A model that says what it is told to: the text between <say> and </say>, the last time these stand in its prompt.

Its caches hold the token ids themselves, so that what it says depends on every row of its slot and no other. Its
drafter guesses every third token wrongly. It stands in for the programs of a bundle; the engine is the real one.
"""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.backend import Buffers, Options, Run
from dflash_engines.bundle import Bundle
from dflash_engines.contract import ACCEPT_VARIANTS
from dflash_engines.errors import EngineError
from dflash_engines.host_engine import HostEngine, host_limits
from tests.engines.scripted_bundle import byte_tokenizer, manifest, write_bundle, write_manifest

MAX_LEN = 1024
TURN = "<|turn|>assistant: "
END = 0  # the id of <|end|>
ACCEPTS = [variant.name for variant in ACCEPT_VARIANTS]
FAULTY = "<fault>"  # in a prompt: the backend fails while the answer is written
_tokenizer = byte_tokenizer()


def _ids(text: str) -> list[int]:
    return list(_tokenizer.encode(text, add_special_tokens=False).ids)


_TURN_IDS = _ids(TURN)


def write_parrot(folder: Path, template: str) -> Path:
    """A bundle that a ParrotEngine can be made of; its programs are never loaded."""
    write_bundle(folder, max_len=MAX_LEN)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    fields = manifest(MAX_LEN)
    fields["limits"] |= {"prefill_chunk": 64}
    fields |= {"stop_token_ids": [END], "programs": fields["programs"] | dict.fromkeys(ACCEPTS, "accept.onnx")}
    write_manifest(folder, fields)
    return folder


def parrot_engine(folder: Path, slots: int = 4) -> HostEngine:
    bundle = Bundle.open(folder)
    return HostEngine(bundle, Parrot(), host_limits(bundle, Options(slots=slots)))


class Parrot:
    """Implements `backend.Programs`."""

    def __init__(self) -> None:
        self.pace: Callable[[], None] = lambda: None  # called at every pass

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        if program == "target":
            return partial(self._target, inputs, outputs)
        return partial(_draft if program == "draft" else _accept, inputs, outputs)

    def _target(self, given: Buffers, found: Buffers) -> None:
        self.pace()
        for slot, start in enumerate(given["start"]):
            _remember(given["target_key_0"], slot, int(start), given["tokens"][slot])
            _remember(given["draft_key_0"], slot, int(start), given["tokens"][slot])
            for i, row in enumerate(given["rows"][slot]):
                if given["length"][slot] > 1:  # not an idle slot
                    found["logits"][slot, i] = 0
                    found["logits"][slot, i, _said_after(given["target_key_0"], slot, int(start + row) + 1)] = 100


def _remember(cache: NDArray[Any], slot: int, start: int, tokens: NDArray[np.int64]) -> None:
    cache[slot, 0, start : start + len(tokens), 0] = tokens


def _said_after(cache: NDArray[Any], slot: int, rows: int) -> int:
    """The next token after that many."""
    ids = cache[slot, 0, :rows, 0].astype(int)
    turns = np.flatnonzero(ids == _TURN_IDS[0])
    if not len(turns):  # a plain completion goes on with its own last character
        return int(ids[-1])
    begin = int(turns[-1]) + len(_TURN_IDS)
    wanted, fault = _wanted(tuple(ids[:begin].tolist()))
    if fault and rows - begin > 4:
        raise EngineError("the parrot has died")
    return wanted[rows - begin] if 0 <= rows - begin < len(wanted) else END


@lru_cache
def _wanted(prompt: tuple[int, ...]) -> tuple[list[int], bool]:
    """What is to be said, and whether it ends badly."""
    text = _tokenizer.decode(list(prompt), skip_special_tokens=False)
    return _ids(text.rpartition("<say>")[2].partition("</say>")[0]), FAULTY in text


def _draft(given: Buffers, found: Buffers) -> None:
    """Right, but for every third place."""
    for slot, start in enumerate(given["start"]):
        block = given["tokens"][slot].copy()
        if given["length"][slot] > 1:
            cache = given["draft_key_0"][slot : slot + 1].copy()
            for i in range(1, len(block)):
                cache[0, 0, start + i - 1, 0] = block[i - 1]
                right = _said_after(cache, 0, int(start) + i)
                block[i] = right if (start + i) % 3 else (right + 1) % 259
        found["block"][slot] = block


def _accept(given: Buffers, found: Buffers) -> None:
    """As the contract says, at any temperature: only one token is ever likely."""
    logits, block = given["logits"].copy(), given["block"]
    if "grammar_mask" in given:
        bits = np.unpackbits(given["grammar_mask"].view(np.uint8), axis=-1, bitorder="little")
        logits[bits[..., : logits.shape[-1]] == 0] = -np.inf
    sampled = logits.argmax(-1)
    for slot, count in enumerate(given["count"]):
        forced, right = int(given["forced"][slot]), block[slot, 1:] == sampled[slot, :-1]
        kept = next((i + 1 for i in range(count - 1) if i + 1 >= forced and not right[i]), int(count))
        results = {"sampled": sampled[slot], "accepted": max(kept - 1, 0), "finite": True,
                   "next_tokens": [sampled[slot, max(kept - 1, 0)], *[2] * (block.shape[1] - 1)],
                   "next_start": min(int(given["start"][slot]) + kept, int(given["limit"][slot]))}  # fmt: skip
        for name in results.keys() & found.keys():
            found[name][slot] = results[name]
