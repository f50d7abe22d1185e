"""A model folder in parts small enough to travel, and back: every part at most 16 MiB, all checked by sha256.

OUT/parts.json        {"files": {"model.safetensors": {"sha256": .., "parts": ["0000", ..]}, ..}}
OUT/0000, OUT/0001 …
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from dflash_training.errors import TrainingError

PART_SIZE = 16 << 20
INDEX = "parts.json"
WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while piece := stream.read(size):
            yield piece


def split_folder(folder: Path, out: Path, *, size: int = PART_SIZE) -> int:
    """Cut the model files of a Hugging Face folder into parts. Returns the number of parts.

    Raises:
        TrainingError: the folder holds no model files.
    """
    files = sorted({path for pattern in WANTED for path in folder.glob(pattern)})
    if not files:
        raise TrainingError(f"{folder}: no model files ({', '.join(WANTED)}); give a Hugging Face folder")
    out.mkdir(parents=True, exist_ok=True)
    index: dict[str, dict[str, object]] = {}
    count = 0
    for path in files:
        digest, names = hashlib.sha256(), []
        for piece in _pieces(path, size):
            name = f"{count:04}"
            (out / name).write_bytes(piece)
            digest.update(piece)
            names.append(name)
            count += 1
        index[path.name] = {"sha256": digest.hexdigest(), "parts": names}
    (out / INDEX).write_text(json.dumps({"files": index}, indent=1) + "\n")
    return count


def join_folder(parts: Path, out: Path) -> None:
    """Put a split folder together again; a file appears only once its sum is right.

    Raises:
        TrainingError: the index or a part is missing, or a file's sha256 differs.
    """
    if not (parts / INDEX).is_file():
        raise TrainingError(f"{parts / INDEX}: missing; make parts with `dflash-train split`")
    out.mkdir(parents=True, exist_ok=True)
    for name, entry in json.loads((parts / INDEX).read_text())["files"].items():
        partial = out / f"{name}.partial"
        digest = hashlib.sha256()
        with partial.open("wb") as stream:
            for part in entry["parts"]:
                if not (parts / part).is_file():
                    raise TrainingError(f"{parts / part}: missing; copy all parts of {name} again")
                piece = (parts / part).read_bytes()
                digest.update(piece)
                stream.write(piece)
        if digest.hexdigest() != entry["sha256"]:
            raise TrainingError(f"{parts}: {name} has another sha256 than when it was split; copy it again")
        partial.replace(out / name)


def is_split(folder: Path) -> bool:
    """Whether a folder holds parts."""
    return (folder / INDEX).is_file()
