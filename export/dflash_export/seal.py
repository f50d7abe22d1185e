"""A bundle's folder becomes a bundle: bundle.json lists every file that lies there, with its hash."""

import hashlib
from pathlib import Path

from dflash_engines.bundle import MANIFEST_FILE, Bundle
from dflash_engines.manifest import FileRecord, Manifest


def seal(folder: Path, manifest: Manifest) -> Bundle:
    """Write bundle.json over the files that lie in the folder now, and open the result."""
    files = {p.name: _record(p) for p in sorted(folder.iterdir()) if p.name != MANIFEST_FILE}
    text = manifest.model_copy(update={"files": files}).model_dump_json(indent=1)
    (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")
    return Bundle.open(folder)


def _record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        return FileRecord(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=path.stat().st_size)
