"""Makes the work of each kind of iteration ready: binds it, warms it up, times its stages, records its graph."""

from collections.abc import Mapping

from dflash_engines.contract import Limits
from dflash_engines.device.arena import DeviceArena
from dflash_engines.device.graphs import GraphCache, GraphKey
from dflash_engines.device.iteration import IterationWork, bind_iteration
from dflash_engines.device.programs import DevicePrograms

_WARM_RUNS = 2  # the first may compile and allocate; the last is timed
Shares = Mapping[str, float]  # of an iteration's time, by stage


class Workshop:
    """The kinds of iterations that an engine has met."""

    def __init__(self, arena: DeviceArena, programs: DevicePrograms, limits: Limits, graphs: bool) -> None:
        self._arena, self._programs, self._limits = arena, programs, limits
        self._wanted = graphs
        self.graphs = GraphCache(device=arena.device, addresses=self._addresses)
        self._made: dict[GraphKey, tuple[IterationWork, Shares]] = {}

    def __contains__(self, key: GraphKey) -> bool:
        return key in self._made

    def work(self, key: GraphKey) -> tuple[IterationWork, Shares]:
        """The work of a key that was made, and the shares of its stages."""
        return self._made[key]

    def bind(self, key: GraphKey) -> IterationWork:
        """The work of a new key, to be made ready once all its slots are idle on the device."""
        return bind_iteration(self._arena, self._programs, self._limits, key)

    def make(self, work: IterationWork) -> None:
        """Run the work until it is warm, and record it. Its slots must be idle: it leaves their rows alone."""
        for _ in range(_WARM_RUNS):
            shares = self._run_and_time(work)
        self.graphs.record(work.key, work.parts(), self._refusal())
        self._made[work.key] = (work, shares)

    def _refusal(self) -> str:
        """Why nothing is recorded; "" when it is. Asked once the programs are bound, as some know only then."""
        if not self._wanted:
            return "graphs are switched off"
        return "" if self._programs.capturable else "this backend's programs can't be recorded"

    def release(self) -> None:
        """Give the graphs back."""
        self.graphs.release()

    def _run_and_time(self, work: IterationWork) -> Shares:
        device = self._arena.device
        marks = [device.event() for _ in range(len(work.stages) + 1)]
        device.record(marks[0])
        for (_, stage), mark in zip(work.stages, marks[1:], strict=True):
            stage()
            device.record(mark)
        device.synchronize()
        spent = {name: device.seconds(marks[i], marks[i + 1]) for i, (name, _) in enumerate(work.stages)}
        total = sum(spent.values()) or 1.0
        return {name: seconds / total for name, seconds in spent.items()}

    def _addresses(self) -> tuple[int, ...]:
        return (self._arena.buffer.address, *self._programs.addresses())
