"""Host memory of an engine: named buffers, sized by the contract and the limits, allocated and zeroed once.

Zeroed, because a NaN left in a row that the mask hides still poisons attention's output.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.contract import Binding, Dim, Dtype, Program

Sizes = Mapping[Dim, int]

# The loop's own wiring, (program, binding) to buffer; every other binding's buffer has the binding's name.
# A drafted block is the target's input and accept's as it lies, accept's next block is the drafter's input.
WIRING = {
    ("draft", "tokens"): "next_block",
    ("accept", "next_tokens"): "next_block",
    ("target", "tokens"): "block",
}


def buffer_name(program: str, binding: Binding) -> str:
    """The buffer behind a binding; an output that updates an input lies in the input's."""
    kind = program.split("_")[0]  # all variants of accept are wired alike
    return WIRING.get((kind, binding.name), binding.updates or binding.name)


def array_shape(binding: Binding, sizes: Sizes) -> tuple[int, ...]:
    """The binding's shape with its dynamic dimensions filled in."""
    return tuple(sizes[d] if isinstance(d, Dim) else d for d in binding.shape)


def array_dtype(dtype: Dtype) -> np.dtype[Any]:
    """NumPy's counterpart of an element type."""
    if dtype is not Dtype.BFLOAT16:
        return np.dtype(dtype.value)
    import ml_dtypes  # for this one type, which no buffer that the host looks at on a GPU has

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


class Arena:
    """Buffers for `programs`, large enough for every call in `calls`."""

    def __init__(self, programs: Iterable[Program], calls: Iterable[Sizes]) -> None:
        self.programs = {program.name: program for program in programs}
        calls = tuple(calls)
        elements: dict[str, int] = {}
        dtypes: dict[str, np.dtype[Any]] = {}
        for program in self.programs.values():
            for binding in (*program.inputs, *program.outputs):
                name = buffer_name(program.name, binding)
                largest = max(prod(array_shape(binding, sizes)) for sizes in calls)
                elements[name] = max(elements.get(name, 0), largest)
                dtypes[name] = array_dtype(binding.dtype)
        self.buffers = {name: np.zeros(count, dtypes[name]) for name, count in elements.items()}

    def views(self, program: str, sizes: Sizes, first_slot: int) -> dict[str, NDArray[Any]]:
        """Contiguous arrays for every binding of one call.

        Caches are those of the slots from `first_slot` on. All other buffers belong to the call and start at
        their first element, so that their contents don't outlive a call of another shape.
        """
        declared = self.programs[program]
        return {b.name: self._view(program, b, sizes, first_slot) for b in (*declared.inputs, *declared.outputs)}

    def _view(self, program: str, binding: Binding, sizes: Sizes, first_slot: int) -> NDArray[Any]:
        shape = array_shape(binding, sizes)
        begin = first_slot * prod(shape[1:]) if Dim.CACHE_ROWS in binding.shape else 0
        return self.buffers[buffer_name(program, binding)][begin : begin + prod(shape)].reshape(shape)
