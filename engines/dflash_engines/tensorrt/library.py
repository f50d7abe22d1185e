"""What differs between TensorRT and TensorRT-RTX when an engine is built. Everything else is written once, for both.

TensorRT-RTX compiles without a GPU, for the compute capabilities it is told, and leaves the choice of kernels to the
machine that runs the engine; it has no timing cache. TensorRT compiles on a GPU, for that GPU, and times kernels.
"""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from dflash_engines.errors import EngineError

TensorRtBackend = Literal["tensorrt", "tensorrt-rtx"]
_PACKAGES: dict[TensorRtBackend, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
# The parser knows TensorScatter, RotaryEmbedding and RMSNormalization from TensorRT 10.15.
_OLDEST: dict[TensorRtBackend, tuple[int, ...]] = {"tensorrt": (10, 15, 1), "tensorrt-rtx": (1, 7)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One of the two, imported."""

    backend: TensorRtBackend
    trt: ModuleType

    @property
    def version(self) -> str:
        """As the package tells it, "1.7.1.116" say."""
        return str(self.trt.__version__)

    @property
    def attends_by_length(self) -> bool:
        """Whether attention can be told how many rows are in use: TensorRT from 11.0, TensorRT-RTX."""
        return hasattr(self.trt.IAttention, "key_value_lengths")

    @property
    def network_flags(self) -> int:
        """Strongly typed: numbers have the types that the program says. TensorRT 11 knows no other kind."""
        return 1 << int(self.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)

    def for_capture(self, config: Any) -> None:
        """Let nothing be allocated while the engine runs, so that a CUDA graph can hold it."""
        flag = getattr(self.trt.BuilderFlag, "REQUIRE_USER_ALLOCATION", None)  # TensorRT needs no such promise
        if flag is not None:
            config.set_flag(flag)

    def aim_at(self, config: Any, capabilities: Sequence[str]) -> None:
        """Build for `capabilities`, such as "8.9". Raises EngineError for those the library can't build for."""
        if self.backend == "tensorrt":
            if capabilities:
                raise EngineError(
                    "TensorRT builds for the GPU of the machine it runs on; leave --compute-capability out, "
                    "or build with --backend tensorrt-rtx"
                )
            return
        config.num_compute_capabilities = len(capabilities)
        for index, capability in enumerate(capabilities):
            config.set_compute_capability(self._capability(capability), index)

    def known_capabilities(self) -> tuple[str, ...]:
        """Those that TensorRT-RTX can build for, the oldest first."""
        numbers = (re.fullmatch(r"SM(\d+)(\d)", name) for name in self.trt.ComputeCapability.__members__)
        found = sorted((int(n[1]), int(n[2])) for n in numbers if n)
        return tuple(f"{major}.{minor}" for major, minor in found)

    def _capability(self, text: str) -> Any:
        if text not in self.known_capabilities():
            raise EngineError(
                f"{self.trt.__name__} {self.version} can't build for compute capability {text!r}, only for "
                f"{', '.join(self.known_capabilities())}"
            )
        return self.trt.ComputeCapability.__members__[f"SM{text.replace('.', '')}"]

    def use_timing_cache(self, config: Any, content: bytes) -> Any | None:
        """Let the builder reuse timings. Returns the cache, to be kept after the build, or None without such a thing.

        A cache of another version or GPU is refused by TensorRT itself, and the build goes on with an empty one.
        """
        if self.backend == "tensorrt-rtx":
            return None
        cache = config.create_timing_cache(content)
        if not config.set_timing_cache(cache, ignore_mismatch=False):
            cache = config.create_timing_cache(b"")
            config.set_timing_cache(cache, ignore_mismatch=False)
        return cache


def load_library(backend: TensorRtBackend) -> Library:
    """Import the library of `backend`. Raises EngineError when it is not installed, or too old."""
    package = _PACKAGES[backend]
    try:
        trt = importlib.import_module(package)
    except ImportError as e:
        raise EngineError(f"backend {backend!r} needs {package} ({e}): pip install 'dflash-trt[{backend}]'") from e
    library = Library(backend=backend, trt=trt)
    oldest = _OLDEST[backend]
    if tuple(int(n) for n in re.findall(r"\d+", library.version)[: len(oldest)]) < oldest:
        raise EngineError(
            f"{package} {library.version} can't read these programs; install {'.'.join(map(str, oldest))} or newer"
        )
    return library
