"""Where and how a report was made: without it no number means anything."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("dflash-trt", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx", "torch",
            "transformers", "onnxruntime-genai", "xllamacpp")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The command, the date, the machine and the versions."""

    command: str
    date: str
    machine: str
    load: float  # of the last minute, when measuring began; near 0 on a quiet machine
    versions: dict[str, str] = field(default_factory=dict)


def about(arguments: Sequence[str] = ()) -> About:
    """Of this process, now."""
    words = list(arguments) or [Path(sys.argv[0]).name, *sys.argv[1:]]
    return About(
        command=shlex.join(words),
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        machine=f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {_memory_gib():.0f} GiB, {platform.system()}",
        load=round(os.getloadavg()[0], 2),
        versions={"python": platform.python_version()} | _versions(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
