"""Other ways to run the same target, each found by name in the entry-point group `dflash.peers`.

A peer is a function (Bundle, path, threads) -> Generate, where `path` is its own form of the target, if it needs one.
Those that need torch live in the exporter's package.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from time import perf_counter

from dflash_engines.bundle import Bundle
from dflash_engines.errors import RequestError
from dflash_runtime.bench.system import Run

ENTRY_POINT_GROUP = "dflash.peers"
Generate = Callable[[Sequence[int], int], Sequence[int]]  # (prompt, max_new_tokens) to new tokens, greedily
Load = Callable[[Bundle, str | None, int], Generate]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerChoice:
    """`name` or `name=path`, as a user writes it."""

    name: str
    path: str | None

    @classmethod
    def parse(cls, text: str) -> "PeerChoice":
        """Raises RequestError when there is no peer of that name."""
        name, _, path = text.partition("=")
        if name not in (known := peer_names()):
            raise RequestError(f"there is no peer {name!r}; there are {', '.join(known)}")
        return cls(name=name, path=path or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Implements `System` by timing a peer from outside."""

    name: str
    answer: Generate

    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> Run:
        """See System."""
        begin = perf_counter()
        tokens = tuple(self.answer(prompt, max_new_tokens))
        return Run(token_ids=tokens, seconds=perf_counter() - begin)


def peer_names() -> list[str]:
    """Every peer that this project can talk to; its package need not be installed."""
    return sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP))


def load_peer(choice: PeerChoice, bundle: Bundle, threads: int) -> Peer | str:
    """The peer, or why it can't take part: a package that isn't installed."""
    (point,) = entry_points(group=ENTRY_POINT_GROUP, name=choice.name)
    try:
        load: Load = point.load()
        return Peer(name=choice.name, answer=load(bundle, choice.path, threads))
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("dflash_"):
            raise
        return f"the package {e.name!r} is not installed"


def until_stop(tokens: Sequence[int], stop_token_ids: Sequence[int]) -> list[int]:
    """The tokens up to the first stop, itself included."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in stop_token_ids), len(tokens))
    return list(tokens[:end])
