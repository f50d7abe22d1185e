"""A build's progress, as TensorRT reports it: phases within phases, each of some steps."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

Advance = Callable[[str, float], object]  # told the phase that runs, and which part of it is done, 0..1


def monitor(trt: ModuleType, advance: Advance) -> Any:
    """An IProgressMonitor that tells `advance`. It may be called from several threads, and never stops a build."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = max(num_steps, 1)
            advance(phase_name, 0.0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            advance(phase_name, min((step + 1) / self._steps.get(phase_name, 1), 1.0))
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)
            advance(phase_name, 1.0)

    return Monitor()
