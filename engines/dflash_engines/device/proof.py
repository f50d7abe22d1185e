"""The golden cases on a device: the engine's own programs, at the shapes that it will use, over its own memory.

Cases have two slots. An engine of one slot computes them one after the other, a larger one has idle slots beside them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_engines.arena import array_dtype
from dflash_engines.device.arena import Arrays
from dflash_engines.device.device import DeviceArray
from dflash_engines.device.engine import DeviceEngine
from dflash_engines.device.iteration import bind
from dflash_engines.device.layout import sizes
from dflash_engines.device.prefill import PROFILE
from dflash_engines.errors import EngineError
from dflash_engines.golden import BEST, SLOTS, Call, Golden, deviation, digest

Values = Mapping[str, NDArray[Any]]


def prove(engine: DeviceEngine, golden: Golden) -> float:
    """Run every case; returns the largest deviation of a logit. Raises EngineError naming the first that is off.

    The engine must not have been used; it is as new afterwards.
    """
    largest = 0.0
    batch = engine.settings.batches[-1]
    for first in range(0, SLOTS, batch):
        _zero(engine)
        for index, (call, wanted) in enumerate(zip(golden.calls, golden.results, strict=True)):
            for rows, found in _outputs(engine, call, first, batch):
                part = {name: value[rows] for name, value in wanted.items()}
                largest = max(largest, _compare(index, call, digest(found), part, golden.tolerance))
    _zero(engine)
    return largest


def _zero(engine: DeviceEngine) -> None:
    engine.device.zero(engine.arena.buffer, 0, engine.arena.buffer.nbytes)
    engine.discard()


def _compare(index: int, call: Call, found: Values, wanted: Values, tolerance: float) -> float:
    for name, value in wanted.items():
        off = deviation(name, found[name], value)
        if not off <= tolerance:
            raise EngineError(
                f"golden case {index} ({call.program}): {name} is off by {off:.3g}, allowed {tolerance:.3g}; "
                "this engine computes something else than the checked program, so it is not used"
            )
    return deviation("columns", found["columns"], wanted["columns"]) if "columns" in wanted else 0.0


def _outputs(engine: DeviceEngine, call: Call, first: int, batch: int) -> Iterator[tuple[slice, Values]]:
    """Which of the call's slots were computed, and their outputs; nothing when it concerns other slots."""
    count = len(next(iter(call.inputs.values())))
    if count < SLOTS:  # a prompt's chunk
        slot = call.first_slot - first
        if 0 <= slot < batch:
            yield slice(0, 1), _run(engine, call.program, call.inputs, PROFILE, slot)
        return
    part = slice(first, min(first + batch, SLOTS))
    inputs = {name: _padded(name, value[part], batch, engine.limits.max_len) for name, value in call.inputs.items()}
    rows = call.inputs["tokens" if "tokens" in call.inputs else "block"].shape[1]
    if rows not in engine.limits.block_sizes:
        raise EngineError(
            f"the golden cases have blocks of {rows}, this engine only {sorted(engine.limits.block_sizes)}, so it "
            f"can't be proven; build it with --block-sizes that hold {rows} too"
        )
    found = _run(engine, call.program, inputs, f"block_{rows}", 0)
    yield part, {name: value[: part.stop - part.start] for name, value in found.items()}


def _padded(name: str, value: NDArray[Any], batch: int, max_len: int) -> NDArray[Any]:
    """With idle slots up to `batch`."""
    idle = {"start": max_len, "length": 1, "count": 0}
    rest = [np.full_like(value[:1], idle[name]) if name in idle else value[:1]] * (batch - len(value))
    return np.concatenate([value, *rest])


def _run(engine: DeviceEngine, program: str, inputs: Values, profile: str, slot: int) -> dict[str, NDArray[Any]]:
    """The outputs, caches aside."""
    arrays = _arrays(engine, program, inputs, profile, slot)
    device = engine.device
    for name, value in inputs.items():
        array = arrays["logits" if name == BEST else name]
        written = _one_hot(value, array) if name == BEST else value.astype(array_dtype(array.dtype))
        device.write(array.buffer, array.offset, written)
    bind(engine.arena, engine.programs, program, profile, arrays)()
    outputs = {b.name: arrays[b.name] for b in engine.arena.programs[program].outputs if not b.updates}
    return {name: _read(engine, array) for name, array in outputs.items()}


def _arrays(engine: DeviceEngine, program: str, inputs: Values, profile: str, slot: int) -> Arrays:
    slots, rows = inputs["tokens" if "tokens" in inputs else "block"].shape
    rows_out = inputs["rows"].shape[1] if "rows" in inputs else rows
    size = sizes(engine.limits, slots=slots, rows_in=rows, rows_out=rows_out)
    if profile == PROFILE:
        return engine.arena.prefill_arrays(program, size, slot)
    return engine.arena.iteration_arrays(program, size)


def _one_hot(best: NDArray[Any], logits: DeviceArray) -> NDArray[np.float32]:
    values = np.zeros(logits.shape, np.float32)
    np.put_along_axis(values, best[..., None], 1.0, axis=-1)
    return values


def _read(engine: DeviceEngine, array: DeviceArray) -> NDArray[Any]:
    pinned = engine.device.pin(array.nbytes)
    engine.device.read(pinned, 0, array.buffer, array.offset, array.nbytes)
    engine.device.synchronize()
    found = pinned.array[: array.nbytes].copy().view(array_dtype(array.dtype)).reshape(array.shape)
    engine.device.unpin(pinned)
    return found
