"""What an engine will take of a device's memory, known before it is built: from the contract and the programs' borders.

Weights, caches and buffers are exact. Scratch memory is TensorRT's to choose and known at load; until then it is
estimated from the widest activations.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from dflash_engines.contract import Limits, Program
from dflash_engines.device.layout import Group, layout
from dflash_engines.errors import EngineError

_GB = 1e9
_WEIGHTS = "weights of"
_SMALLEST = 4096  # bytes; accept has a few constants and no weights
_MASK = 4  # bytes of a column in a row's masks, about
_LIVE = 6  # activations of the widest product that are alive together, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of memory. Rows that are `within` another one explain it and don't add to the sum."""

    what: str
    nbytes: int
    within: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """All kinds of memory of one engine."""

    rows: tuple[Row, ...]

    @property
    def total(self) -> int:
        """Bytes of all rows."""
        return sum(row.nbytes for row in self.rows if not row.within)

    @property
    def weights(self) -> int:
        """Bytes of all weights, counted for each engine that holds them."""
        return sum(row.nbytes for row in self.rows if row.what.startswith(_WEIGHTS))

    def check(self, available: int, where: str) -> None:
        """Raises EngineError, with the numbers, when the sum is more than `available` bytes."""
        if self.total > available:
            parts = ", ".join(f"{row.what} {row.nbytes / _GB:.2f}" for row in self.rows if not row.within)
            raise EngineError(
                f"this needs {self.total / _GB:.2f} GB of device memory ({parts}), and {where} has "
                f"{available / _GB:.2f}; choose a smaller max_len, max_batch or prefill_chunk, or int8 or int4 weights"
            )


def memory_table(
    models: Mapping[str, ModelProto], programs: Iterable[Program], limits: Limits, scratch: int | None = None
) -> MemoryTable:
    """The table for `models`, loaded without their weights. `scratch` bytes where they are known."""
    programs = tuple(programs)
    places = {name: _places(model.graph) for name, model in models.items()}
    weights = [Row(what=f"{_WEIGHTS} {name}", nbytes=sum(sizes.values())) for name, sizes in places.items()]
    plan = layout(programs, limits, max(*limits.block_sizes, 2))
    caches = plan.groups[Group.CACHES].nbytes
    rows = [
        *(row for row in weights if row.nbytes >= _SMALLEST),
        Row(what="held twice, as two programs need them", nbytes=_twice(places.values()), within=True),
        Row(what="caches", nbytes=caches),
        Row(what="buffers", nbytes=plan.nbytes - caches),
        Row(what="scratch" if scratch is not None else "scratch, about",
            nbytes=scratch if scratch is not None else _scratch(models, limits)),
    ]  # fmt: skip
    return MemoryTable(rows=tuple(rows))


_Place = tuple[str, int, int]  # file, offset, length


def _places(graph: GraphProto) -> dict[_Place, int]:
    """Where the program's weights lie, and their bytes."""
    found: dict[_Place, int] = {}
    for tensor in graph.initializer:
        if uses_external_data(tensor):
            info = ExternalDataInfo(tensor)
            found[info.location, info.offset or 0, info.length or 0] = info.length or 0
        elif tensor.raw_data:
            found[tensor.name, 0, len(tensor.raw_data)] = len(tensor.raw_data)
    return found


def _twice(places: Iterable[Mapping[_Place, int]]) -> int:
    """Bytes of what more than one engine holds: embedding and head, mostly."""
    seen: set[_Place] = set()
    twice = 0
    for place, nbytes in ((p, n) for sizes in places for p, n in sizes.items()):
        twice += nbytes if place in seen else 0
        seen.add(place)
    return twice


def _scratch(models: Mapping[str, ModelProto], limits: Limits) -> int:
    """The largest call's rows, each with some fp32 activations of the widest product and a mask of all columns."""
    rows = max(limits.prefill_chunk, limits.max_batch * max(limits.block_sizes))
    return max(rows * (4 * _LIVE * _widest(m.graph) + _MASK * limits.cache_rows) for m in models.values())


def _widest(graph: GraphProto) -> int:
    """Columns of the widest product but the head."""
    heads = {name for node in graph.node if node.op_type == "Gather" for name in node.input[:1]}
    outputs = {value.name for value in graph.output}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    columns = [
        weights[name].dims[-1]
        for node in graph.node if node.op_type == "MatMul" and node.output[0] not in outputs
        for name in node.input if name in weights and name not in heads
    ]  # fmt: skip
    return max(columns, default=1)
