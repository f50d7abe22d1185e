"""A reduced draft vocabulary: the tokens that the target's answers use most.

Lossless, since the target still chooses among all tokens; the drafter's head gets as much smaller as the list.
"""

import json
from pathlib import Path

from dflash_engines.errors import CheckpointError

FILE = "token_counts.json"  # beside a drafter's weights: {"token_ids": [...], "counts": [...]}, most frequent first


def most_used(path: Path, count: int) -> tuple[int, ...]:
    """The `count` most frequent token ids of a counts file. Raises CheckpointError."""
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))["token_ids"]
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; --draft-vocab needs the counts that dflash-train leaves there, "
                              "or another file by --draft-vocab-counts") from None  # fmt: skip
    except (ValueError, KeyError, TypeError) as fault:
        raise CheckpointError(
            f'{path} is not a counts file, {{"token_ids": [most frequent first]}}: {fault}'
        ) from fault
    if not 1 <= count <= len(ids):
        raise CheckpointError(f"--draft-vocab {count}: {path} counts {len(ids)} tokens, so choose 1 to {len(ids)}")
    return tuple(int(i) for i in ids[:count])
