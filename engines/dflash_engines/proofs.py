"""Golden cases that passed, remembered on this machine: the first load of a program runs them, later ones needn't.

A record is found by what was run (programs, weights, cases), by what (backend and version) and on what (the device).
It lies in the user's cache, since a bundle may be read-only, and shared by machines of different kinds.
"""

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_engines.bundle import Bundle
from dflash_engines.cache_folder import cache_folder
from dflash_engines.golden import FILE

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the golden cases found."""

    largest_deviation: float  # of a logit
    seconds: float  # that the cases took


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a proof holds for."""

    bundle: Bundle
    backend: str
    version: str
    device: str

    @property
    def key(self) -> str:
        """The record's name. The bundle's place and its tokenizer don't matter."""
        manifest = self.bundle.manifest
        names = (*manifest.programs.values(), "weights.bin", FILE)
        files = {name: manifest.files[name].sha256 for name in sorted(names) if name in manifest.files}
        content = [files, asdict(manifest.limits), self.backend, self.version, self.device]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def prove(setting: Setting, run: Callable[[], Proof]) -> Proof:
    """The remembered proof, or that which `run` gives now. Raises what `run` raises; then nothing is remembered."""
    known = _recall(setting)
    if known is not None:
        return known
    proof = run()
    _remember(setting, proof)
    return proof


def processor() -> str:
    """This machine's processor, as a device."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {model or platform.processor()}"


def _file(setting: Setting) -> Path:
    return cache_folder() / "proofs" / f"{setting.key}.json"


def _recall(setting: Setting) -> Proof | None:
    """None for a record that isn't there or can't be read: the cases run again."""
    try:
        return Proof(**json.loads(_file(setting).read_bytes()))
    except (OSError, ValueError, TypeError, RuntimeError):  # the last: no home
        return None


def _remember(setting: Setting, proof: Proof) -> None:
    """Write the record, whole or not at all. A folder that can't be written costs the next load some time, no more."""
    try:
        file = _file(setting)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(asdict(proof)), encoding="utf-8")
        unfinished.replace(file)
    except (OSError, RuntimeError) as e:
        log.warning("that the golden cases passed was not kept: %s", e)
