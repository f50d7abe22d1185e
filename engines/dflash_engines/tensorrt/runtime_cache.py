"""Kernels that TensorRT-RTX compiled on this machine, kept between loads. TensorRT has no such cache and needs none."""

import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class RuntimeCaches:
    """One cache for each program, in a folder; without a folder they last as long as the process."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._caches: dict[str, Any] = {}

    def attach(self, program: str, config: Any) -> None:
        """Let contexts made with `config` use the program's cache."""
        if program not in self._caches:
            self._caches[program] = config.create_runtime_cache()
            self._fill(program)
        config.set_runtime_cache(self._caches[program])

    def save(self) -> None:
        """Write them, whole or not at all. A folder that can't be written costs the next load time, no more."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for program, cache in self._caches.items():
                unfinished = self._file(program).with_suffix(f".{os.getpid()}")
                unfinished.write_bytes(bytes(cache.serialize()))
                unfinished.replace(self._file(program))
        except OSError as e:
            log.warning("compiled kernels were not kept: %s", e)

    def _fill(self, program: str) -> None:
        """From the file; the library refuses one of another version, device or driver, which is then written anew."""
        try:
            content = self._file(program).read_bytes() if self._folder is not None else b""
        except OSError:
            return
        if content and not self._caches[program].deserialize(content):
            log.warning("%s is of another version, device or driver; kernels are compiled again", self._file(program))

    def _file(self, program: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{program}.kernels"
