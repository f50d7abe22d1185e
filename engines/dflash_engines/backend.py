"""What a backend in host memory offers, and how a backend is found by name.

A backend is an entry point of the group `dflash.backends`: a function (Bundle, Options) -> Engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from dflash_engines.engine import Engine
from dflash_engines.errors import EngineError

if TYPE_CHECKING:
    from dflash_engines.bundle import Bundle

ENTRY_POINT_GROUP = "dflash.backends"
Buffers = Mapping[str, NDArray[Any]]
Run = Callable[[], None]


class Programs(Protocol):
    """A bundle's programs, ready to run on arrays in host memory."""

    def bind(self, program: str, inputs: Buffers, outputs: Buffers) -> Run:
        """A function that runs `program` once over these arrays, named as in the contract.

        An output at the same address as an input is updated in place. The function keeps the arrays alive,
        returns when the outputs are written, and raises EngineError when the run fails.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to load a bundle. None leaves the choice to the backend or to the bundle's limits."""

    threads: int | None = None  # CPU threads of each program call
    max_len: int | None = None  # tokens a slot can hold, at most the bundle's
    slots: int | None = None  # requests in flight together, at most what the backend can
    provider: str | None = None  # an execution provider of ONNX Runtime


def load_engine(bundle: "Bundle", backend: str, options: Options) -> Engine:
    """Load `bundle` into the backend called `backend`. Raises EngineError when there is none of that name."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if backend not in found:
        raise EngineError(f"no backend {backend!r}; installed are {sorted(found)}")
    try:
        load: Callable[[Bundle, Options], Engine] = found[backend].load()
    except ModuleNotFoundError as e:
        raise EngineError(f"backend {backend!r} needs the package {e.name!r}, which is not installed") from e
    return load(bundle, options)
