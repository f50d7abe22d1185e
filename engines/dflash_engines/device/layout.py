"""Where each of an engine's buffers lies in its one allocation. Pure arithmetic, from the contract.

Iterations and prefill have buffers of their own, except for the caches: a prompt is computed between two iterations
without disturbing what the first left for the second.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from dflash_engines.arena import Sizes, array_shape, buffer_name
from dflash_engines.contract import Binding, Dim, Dtype, Limits, Program

ALIGNMENT = 256  # bytes; what TensorRT asks of every address
PREFILL = "prefill."  # in the name of each of prefill's own buffers
STATE = ("next_block", "start", "length")  # what an iteration leaves on the device for the next one


class Group(StrEnum):
    """Buffers that lie together, as they are moved together."""

    CACHES = "caches"
    STATE = "state"
    CONTROLS = "controls"  # inputs that the host decides; small, and uploaded as one
    RULES = "rules"  # large inputs that the host decides, of a vocabulary's or a context's size; uploaded by slot
    RESULTS = "results"  # outputs that the host reads; copied to it as one
    PREFILL = "prefill"
    FIRST_TOKEN = "first token"  # prefill's results
    BETWEEN = "between"  # from one program to another


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A buffer's place in the allocation, in bytes."""

    offset: int
    nbytes: int
    dtype: Dtype

    @property
    def end(self) -> int:
        """The byte after it."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A group's part of the allocation, in bytes."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All places by buffer name, and the groups."""

    places: Mapping[str, Place]
    groups: Mapping[Group, Span]
    nbytes: int


def sizes(limits: Limits, *, slots: int, rows_in: int, rows_out: int) -> dict[Dim, int]:
    """The dynamic dimensions of one call."""
    return {Dim.SLOTS: slots, Dim.ROWS_IN: rows_in, Dim.ROWS_OUT: rows_out, Dim.BLOCK: rows_out,
            Dim.CACHE_ROWS: limits.cache_rows}  # fmt: skip


def layout(programs: Iterable[Program], limits: Limits, widest: int) -> Layout:
    """Places for iterations of up to `widest` rows over all slots, and for prefill of one slot."""
    programs = tuple(programs)
    decode = sizes(limits, slots=limits.max_batch, rows_in=widest, rows_out=widest)
    prefill = sizes(limits, slots=1, rows_in=limits.prefill_chunk, rows_out=1)
    wanted: dict[Group, dict[str, tuple[int, Dtype]]] = {group: {} for group in Group}
    for name, group, binding, call in _uses(programs, decode, prefill):
        nbytes = prod(array_shape(binding, call)) * binding.dtype.size
        before = wanted[group].get(name, (0, binding.dtype))
        wanted[group][name] = (max(before[0], nbytes), binding.dtype)
    return _laid_out(wanted)


def _uses(programs: tuple[Program, ...], decode: Sizes, prefill: Sizes) -> Iterator[tuple[str, Group, Binding, Sizes]]:
    """Every binding of every call: the buffer's name and group, and the call's sizes."""
    produced = {buffer_name(p.name, b) for p in programs for b in p.outputs}
    for program in programs:
        for binding in (*program.inputs, *program.outputs):
            name = buffer_name(program.name, binding)
            group = _group(program, binding, name, produced)
            yield name, group, binding, decode
            if not program.name.startswith("draft") and not is_cache(binding):
                own = Group.FIRST_TOKEN if group is Group.RESULTS else Group.PREFILL
                yield PREFILL + name, own, binding, prefill


def is_cache(binding: Binding) -> bool:
    """Whether a binding is one end of a cache that is updated in place."""
    return bool(binding.updates) or len(binding.shape) == 4  # heads and their size beside B and M


def _group(program: Program, binding: Binding, name: str, produced: set[str]) -> Group:
    if is_cache(binding):
        return Group.CACHES
    if name in STATE:
        return Group.STATE
    if name in ("logits", "hidden"):
        return Group.BETWEEN
    if name in produced:
        return Group.RESULTS
    small = all(dim in (Dim.SLOTS, Dim.ROWS_OUT) for dim in binding.shape)
    return Group.CONTROLS if small else Group.RULES


def _laid_out(wanted: Mapping[Group, Mapping[str, tuple[int, Dtype]]]) -> Layout:
    places: dict[str, Place] = {}
    groups: dict[Group, Span] = {}
    end = 0
    for group, buffers in wanted.items():
        begin = end
        for name, (nbytes, dtype) in buffers.items():
            places[name] = Place(offset=end, nbytes=nbytes, dtype=dtype)
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        groups[group] = Span(offset=begin, nbytes=end - begin)
    return Layout(places=places, groups=groups, nbytes=end)
