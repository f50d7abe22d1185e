"""Accept programs that were traced once, for all workers and runs, for as long as their sources stay the same.

They have no weights, so they are the same for all pairs of a vocabulary; tracing them takes most of an export's time.
"""

import fcntl
from collections.abc import Callable
from pathlib import Path

from dflash_engines.contract import AcceptVariant

TraceAccept = Callable[[AcceptVariant, int, int], bytes]  # (variant, vocabulary, mask token) to an ONNX file


def traced_once(trace: TraceAccept, folder: Path) -> TraceAccept:
    """`trace` with its results kept in `folder`."""

    def get(variant: AcceptVariant, vocab_size: int, mask_token_id: int) -> bytes:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{variant.name}-{vocab_size}-{mask_token_id}.onnx"
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                unfinished = file.with_suffix(".unfinished")
                unfinished.write_bytes(trace(variant, vocab_size, mask_token_id))
                unfinished.rename(file)
            return file.read_bytes()

    return get
