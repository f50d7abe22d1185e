"""Iterations as graphs: one for each key, recorded after a plain run, replayed only where it was made for."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dflash_engines.device.device import Device, Graph
from dflash_engines.errors import CaptureError, DeviceError, EngineError

log = logging.getLogger(__name__)
Work = Callable[[], None]
Addresses = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKey:
    """Everything that the work of an iteration depends on, but for the contents of buffers."""

    slots: int  # B: the leading slots that are computed
    rows: int  # K
    draft: str  # the draft program's name; "" decodes plainly
    accept: str  # the accept variant's name
    split: bool  # whether draft, target and accept are launched one by one


@dataclass(slots=True, kw_only=True)
class GraphCounts:
    """How iterations were run."""

    captures: int = 0
    replays: int = 0
    launches_without_graph: int = 0
    reason: str = ""  # why there are any without a graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """A key's work, part by part."""

    parts: Sequence[Work]
    graphs: list[Graph]  # none when the work runs plainly
    addresses: Addresses


@dataclass(slots=True, kw_only=True)
class GraphCache:
    """The graphs of one engine. `addresses` tells the current ones of all memory that graphs have learnt."""

    device: Device
    addresses: Callable[[], Addresses]
    counts: GraphCounts = field(default_factory=GraphCounts)
    _recorded: dict[GraphKey, _Recorded] = field(default_factory=dict)

    def __contains__(self, key: GraphKey) -> bool:
        return key in self._recorded

    def record(self, key: GraphKey, parts: Sequence[Work], refusal: str) -> None:
        """Record the key's work, which must have run before: a first run may allocate, which a capture forbids.

        Work that can't be recorded, or mustn't be for the reason of `refusal`, will be run plainly.
        """
        graphs: list[Graph] = []
        if not refusal:
            try:
                for part in parts:
                    graphs.append(self._capture(part))
            except DeviceError:
                raise
            except EngineError as e:  # it ran before, so what fails is the recording
                self._drop(graphs)
                log.warning("iterations of %s run without a graph: %s", key, e)
                self.counts.reason = str(e)
        else:
            self.counts.reason = refusal
        self._recorded[key] = _Recorded(parts=parts, graphs=graphs, addresses=self.addresses())

    def run(self, key: GraphKey, part: int) -> None:
        """Do one part of a recorded key's work."""
        recorded = self._recorded[key]
        if recorded.addresses != self.addresses():
            raise EngineError(f"the graph of {key} was made for memory that has moved since: a fault of the engine")
        if not recorded.graphs:
            self.counts.launches_without_graph += 1
            recorded.parts[part]()
            return
        self.counts.replays += 1
        self.device.launch(recorded.graphs[part])

    def release(self) -> None:
        """Give all graphs back."""
        for recorded in self._recorded.values():
            self._drop(recorded.graphs)
        self._recorded.clear()

    def _drop(self, graphs: list[Graph]) -> None:
        while graphs:
            self.device.drop(graphs.pop())

    def _capture(self, part: Work) -> Graph:
        graph = self.device.capture(part)
        if graph.nodes == 0:
            self.device.drop(graph)
            raise CaptureError("nothing was recorded: the programs run on another device or stream")
        self.counts.captures += 1
        return graph
