"""The work of one iteration: which programs, over which arrays, in which order, and what is left for the next one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_engines.contract import Limits
from dflash_engines.device.arena import Arrays, DeviceArena
from dflash_engines.device.device import DeviceArray
from dflash_engines.device.graphs import GraphKey
from dflash_engines.device.layout import sizes
from dflash_engines.device.programs import DevicePrograms, Enqueue

Stage = tuple[str, Enqueue]  # what the time goes to, and the work


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationWork:
    """A key's work in stages, and its arrays by binding name."""

    key: GraphKey
    stages: Sequence[Stage]  # draft, target, accept
    arrays: Arrays

    def parts(self) -> list[Callable[[], None]]:
        """What is launched as one: everything, or each stage."""
        works = [work for _, work in self.stages]
        return works if self.key.split else [lambda: _all(works)]


def _all(works: Sequence[Enqueue]) -> None:
    for work in works:
        work()


def bind_iteration(arena: DeviceArena, programs: DevicePrograms, limits: Limits, key: GraphKey) -> IterationWork:
    """Bind the programs of `key`, once and for all."""
    size = sizes(limits, slots=key.slots, rows_in=key.rows, rows_out=key.rows)
    names = (key.draft or "draft", "target", key.accept)
    arrays = {name: arena.iteration_arrays(name, size) for name in names}
    profile = f"block_{key.rows}"

    def bound(name: str) -> Enqueue:
        return bind(arena, programs, name, profile, arrays[name])

    target, accept = bound("target"), bound(key.accept)
    every = {binding: array for name in names for binding, array in arrays[name].items() if binding != "tokens"}
    every["next_block"] = arrays[names[0]]["tokens"]
    draft = bound(key.draft) if key.draft else _copies(arena, [(every["next_block"], arrays["target"]["tokens"])])
    advance = _copies(arena, [(every["next_start"], every["start"]), (every["next_length"], every["length"])])
    stages = (("draft", draft), ("target", target), ("accept", lambda: _all([accept, advance])))
    return IterationWork(key=key, stages=stages, arrays=every)


def bind(arena: DeviceArena, programs: DevicePrograms, name: str, profile: str, arrays: Arrays) -> Enqueue:
    """One program over its arrays."""
    declared = arena.programs[name]
    inputs = {b.name: arrays[b.name] for b in declared.inputs}
    return programs.bind(name, profile, inputs, {b.name: arrays[b.name] for b in declared.outputs})


def _copies(arena: DeviceArena, pairs: Sequence[tuple[DeviceArray, DeviceArray]]) -> Enqueue:
    """Copy each first array over the second."""

    def work() -> None:
        for source, to in pairs:
            arena.device.copy(to.buffer, to.offset, source.buffer, source.offset, source.nbytes)

    return work
