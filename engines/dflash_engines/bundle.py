"""A bundle on disk: opened once, every listed file checked, nothing unlisted ever read."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import ValidationError

from dflash_engines.errors import BundleError, ContractError
from dflash_engines.manifest import SCHEMA_VERSION, FileRecord, Manifest

MANIFEST_FILE = "bundle.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A verified bundle. `path` is absolute, so that nothing depends on the working directory."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read and verify the bundle in folder `path`. Raises BundleError naming the first fault.

        Every listed file is read once for its SHA-256: about a second per gigabyte.
        """
        folder = _folder(path)
        manifest = _read_manifest(folder)
        for name, record in manifest.files.items():
            _check_file(folder, name, record)
        for program, name in manifest.programs.items():
            if name not in manifest.files:
                raise BundleError(f"{folder}: program {program!r} is in {name!r}, which is not listed; {_AGAIN}")
        return cls(path=folder, manifest=manifest)

    def has(self, name: str) -> bool:
        """Whether the bundle lists a file of this name."""
        return name in self.manifest.files

    def file(self, name: str) -> Path:
        """Where the listed file `name` lies. Raises BundleError when it isn't listed."""
        if not self.has(name):
            raise BundleError(f"{self.path}: {name!r} is not one of the bundle's files; {_AGAIN}")
        return self.path / name

    def program(self, name: str) -> Path:
        """Where program `name` lies. Raises BundleError when the bundle has no such program."""
        if name not in self.manifest.programs:
            raise BundleError(f"{self.path}: has no program {name!r}, only {sorted(self.manifest.programs)}; {_AGAIN}")
        return self.file(self.manifest.programs[name])


_AGAIN = "export the pair again with dflash-export"


def _folder(path: str | Path) -> Path:
    """The absolute path of a folder that is there."""
    try:
        folder = Path(path).expanduser().resolve()
        found = folder.is_dir()
    except (TypeError, ValueError, RuntimeError, OSError) as e:  # no path, NUL in it, no such home, too long
        raise BundleError(f"{path!r} can't be a folder ({e}); give the folder that dflash-export wrote") from e
    if not found:
        raise BundleError(f"{folder}: no such folder; give the folder that dflash-export wrote")
    return folder


def _read_manifest(folder: Path) -> Manifest:
    file = folder / MANIFEST_FILE
    if not file.is_file():
        raise BundleError(f"{folder}: has no {MANIFEST_FILE}; not a bundle, or an export that didn't finish; {_AGAIN}")
    try:
        fields = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as e:
        raise BundleError(f"{file}: not valid JSON ({e}); {_AGAIN}") from e
    _check_schema(file, fields)
    try:
        return Manifest.model_validate(fields)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BundleError(f"{file}: {where}: {first['msg'].removeprefix('Value error, ')}; {_AGAIN}") from e
    except ContractError as e:
        raise BundleError(f"{file}: {e}; {_AGAIN}") from e


def _check_schema(file: Path, fields: object) -> None:
    """The version comes before all else: another version may differ in every other field."""
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if type(version) is not int:
        raise BundleError(f"{file}: has no schema_version; not a bundle of this project")
    if version < SCHEMA_VERSION:
        raise BundleError(f"{file}: schema {version} is older than this release reads ({SCHEMA_VERSION}); {_AGAIN}")
    if version > SCHEMA_VERSION:
        raise BundleError(f"{file}: schema {version} is newer than this release reads ({SCHEMA_VERSION}); "
                          "upgrade dflash-trt")  # fmt: skip


def _check_file(folder: Path, name: str, record: FileRecord) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise BundleError(f"{folder}: lists {name!r}, which lies outside the bundle; {_AGAIN}")
    file = folder / name
    if not file.is_file():
        raise BundleError(f"{folder}: {name} is missing; copy the bundle again, or {_AGAIN}")
    if (size := file.stat().st_size) != record.bytes:
        raise BundleError(f"{file}: {size} bytes where {record.bytes} were written; copy it again, or {_AGAIN}")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != record.sha256:
        raise BundleError(f"{file}: its SHA-256 is not the listed one, it was changed after export; {_AGAIN}")
