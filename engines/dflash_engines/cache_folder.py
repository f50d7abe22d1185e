"""Where this machine keeps what it found out about bundles: proofs, costs, compiled kernels."""

import os
from pathlib import Path

FOLDER_VARIABLE = "DFLASH_CACHE_DIR"


def cache_folder() -> Path:
    """$DFLASH_CACHE_DIR, else dflash-trt in the user's cache folder."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dflash-trt"
