"""An engine's device memory: one allocation, zeroed once, and the arrays of every call in it.

Zeroed, because a NaN left in a row that the mask hides still poisons attention's output.
"""

from collections.abc import Iterable, Mapping
from math import prod

from dflash_engines.arena import Sizes, array_shape, buffer_name
from dflash_engines.contract import Binding, Dim, Limits, Program
from dflash_engines.device.device import Device, DeviceArray
from dflash_engines.device.layout import PREFILL, Place, Span, is_cache, layout
from dflash_engines.errors import EngineError

Arrays = dict[str, DeviceArray]


class DeviceArena:
    """Buffers for `programs`, for iterations of up to `widest` rows and for prefill."""

    def __init__(self, device: Device, programs: Iterable[Program], limits: Limits, widest: int) -> None:
        self.device = device
        self.programs = {program.name: program for program in programs}
        self.layout = layout(self.programs.values(), limits, widest)
        check_fits(device, self.layout.nbytes)
        self.buffer = device.allocate(self.layout.nbytes)
        device.zero(self.buffer, 0, self.layout.nbytes)

    def iteration_arrays(self, program: str, sizes: Sizes) -> Arrays:
        """Arrays of a call over the first slots."""
        return {b.name: self._array(self._place(program, b, ""), b, sizes, 0) for b in self._bindings(program)}

    def prefill_arrays(self, program: str, sizes: Sizes, slot: int) -> Arrays:
        """Arrays of a call over `slot` alone: its caches, and prefill's own buffers."""
        return {b.name: self._array(self._place(program, b, PREFILL), b, sizes, slot) for b in self._bindings(program)}

    def slot_caches(self, slot: int, cache_rows: int) -> list[Span]:
        """The parts of the allocation that hold a slot's rows."""
        one = {Dim.SLOTS: 1, Dim.CACHE_ROWS: cache_rows}
        found: dict[str, Span] = {}
        for program in self.programs.values():
            for binding in program.inputs:
                if is_cache(binding):
                    array = self._array(self._place(program.name, binding, ""), binding, one, slot)
                    found[binding.name] = Span(offset=array.offset, nbytes=array.nbytes)
        return list(found.values())

    def release(self) -> None:
        """Give the memory back."""
        self.device.free(self.buffer)

    def _bindings(self, program: str) -> tuple[Binding, ...]:
        declared = self.programs[program]
        return (*declared.inputs, *declared.outputs)

    def _place(self, program: str, binding: Binding, prefix: str) -> Place:
        name = buffer_name(program, binding)
        return self.layout.places[name if is_cache(binding) else prefix + name]

    def _array(self, place: Place, binding: Binding, sizes: Sizes, slot: int) -> DeviceArray:
        shape = array_shape(binding, sizes)
        behind = slot * prod(shape[1:]) * binding.dtype.size if is_cache(binding) else 0
        return DeviceArray(buffer=self.buffer, offset=place.offset + behind, shape=shape, dtype=binding.dtype)


def within(arrays: Mapping[str, DeviceArray], span: Span) -> dict[str, DeviceArray]:
    """Those arrays that lie in a span."""
    return {name: a for name, a in arrays.items() if span.offset <= a.offset < span.offset + span.nbytes}


def check_fits(device: Device, nbytes: int) -> None:
    """Refuse, with the numbers, what the device has no room for."""
    memory = device.memory()
    if memory is not None and nbytes > memory[0]:
        raise EngineError(
            f"caches and buffers need {nbytes / 1e6:,.1f} MB, {device.name} has {memory[0] / 1e6:,.1f} of "
            f"{memory[1] / 1e6:,.1f} MB free; ask for a smaller max_len or fewer slots"
        )
