"""Answers and their hidden states on disk, in shards that are written once.

    FOLDER/manifest.json            target, revision, taps, token limits
    FOLDER/00000.jsonl.gz           one answer a line: ids and provenance
    FOLDER/00000.states.npy         [T, N+1, H] bf16 (kept as uint16), all answers of the shard one after another

A shard counts once its `.jsonl.gz` is there: it is written last, under another name, and renamed.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash_training.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One answer of the target with its origin. `turn` counts from 0; temperature 0 is greedy."""

    id: str
    source: str
    turn: int
    seed: int
    temperature: float
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str, int, int, float]:
        """What tells this answer from all others."""
        return (self.source, self.id, self.turn, self.seed, self.temperature)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt_ids + self.response_ids

    @property
    def state_rows(self) -> int:
        """Tokens that the target read: all but the last."""
        return len(self.prompt_ids) + len(self.response_ids) - 1


def write_manifest(folder: Path, manifest: dict[str, object]) -> None:
    """Write the manifest, or check that the one there is the same.

    Raises:
        TrainingError: the folder holds answers made with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manifest.json"
    if path.is_file() and (there := json.loads(path.read_text())) != manifest:
        different = sorted(k for k in manifest | there if manifest.get(k) != there.get(k))
        raise TrainingError(f"{path}: made with another {', '.join(different)}; give a new folder, or delete it")
    path.write_text(json.dumps(manifest, indent=1) + "\n")


def read_manifest(folder: Path) -> dict[str, object]:
    """The settings all answers of a folder were made with."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise TrainingError(f"{path}: missing; run `dflash-train responses` into this folder first")
    manifest: dict[str, object] = json.loads(path.read_text())
    return manifest


def shard_names(folder: Path) -> list[str]:
    """Names of the finished shards, in order."""
    return sorted(path.name.removesuffix(".jsonl.gz") for path in folder.glob("*.jsonl.gz"))


def write_responses(path: Path, responses: Sequence[Response]) -> None:
    """Write a shard's answers; the file appears whole or not at all."""
    partial = path.with_suffix(".partial")
    with gzip.open(partial, "wt", encoding="utf-8") as stream:
        for response in responses:
            stream.write(json.dumps(asdict(response), separators=(",", ":")) + "\n")
    partial.rename(path)


def read_responses(path: Path) -> list[Response]:
    """Answers of one file. Files with only source, prompt_ids and response_ids count as greedy first turns."""
    responses = []
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for number, line in enumerate(stream):
            row = {"id": str(number), "turn": 0, "seed": 0, "temperature": 0.0} | json.loads(line)
            row["prompt_ids"], row["response_ids"] = tuple(row["prompt_ids"]), tuple(row["response_ids"])
            responses.append(Response(**row))
    return responses


def write_states(path: Path, states: Sequence[Tensor]) -> None:
    """Write [T_i, N+1, H] bf16 tensors one after another."""
    np.save(path, torch.cat(list(states)).view(torch.uint16).numpy())


@dataclass(frozen=True, slots=True)
class Example:
    """One answer and where its states begin in its shard."""

    response: Response
    shard: str
    offset: int


class Store:
    """All finished shards of one or more folders, their states memory-mapped where there are any."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)
        self.manifests = [read_manifest(folder) for folder in folders]
        self.maps: dict[str, NDArray[np.uint16]] = {}
        self.examples: list[Example] = []
        for folder in folders:
            self.examples += _examples(folder)

    def states(self, example: Example) -> Tensor:
        """Taps and last hidden state of one answer, [T, N+1, H] bf16."""
        if example.shard not in self.maps:
            self.maps[example.shard] = np.load(f"{example.shard}.states.npy", mmap_mode="r")
        rows = self.maps[example.shard][example.offset : example.offset + example.response.state_rows]
        return torch.from_numpy(rows.copy()).view(torch.bfloat16)


def _examples(folder: Path) -> Iterator[Example]:
    for name in shard_names(folder):
        offset = 0
        for response in read_responses(folder / f"{name}.jsonl.gz"):
            yield Example(response, str(folder / name), offset)
            offset += response.state_rows
