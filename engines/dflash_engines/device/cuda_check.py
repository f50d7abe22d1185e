"""The one place where the status of a CUDA call is looked at.

Some errors are sticky: the context, and with it the process, can't use the device any more. Nothing is retried then;
the device is lost, with its reason, and every later call says so.
"""

from collections.abc import Callable
from typing import Any, ParamSpec

from dflash_engines.errors import CaptureError, DeviceError, EngineError

P = ParamSpec("P")
SUCCESS, OUT_OF_MEMORY, NOT_READY = 0, 2, 600
# By value, as names came one by one with the releases of CUDA: deinitialised, ECC and NVLink faults, a contained
# fault, illegal or misaligned addresses, kernels that time out, trap or fail, the context gone, MPS gone, unknown.
STICKY = frozenset({4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 805, 806, 810, 999})
CAPTURE = frozenset(range(900, 909))  # what can't be done to a stream that records


class Checker:
    """Calls into the driver for one device."""

    def __init__(self) -> None:
        self.lost: str | None = None

    def __call__(self, function: Callable[P, tuple[Any, ...]], *arguments: P.args, **named: P.kwargs) -> Any:
        """What the function returns beside its status. Raises EngineError, CaptureError or DeviceError."""
        status, values = self._call(function, *arguments, **named)
        if int(status) != SUCCESS:
            self._fail(function.__name__, status)
        return values[0] if len(values) == 1 else tuple(values)

    def ready(self, function: Callable[P, tuple[Any, ...]], *arguments: P.args, **named: P.kwargs) -> bool:
        """Whether a query says that the work is done. Raises like a call."""
        status, _ = self._call(function, *arguments, **named)
        if int(status) not in (SUCCESS, NOT_READY):
            self._fail(function.__name__, status)
        return int(status) == SUCCESS

    def _call(
        self, function: Callable[P, tuple[Any, ...]], *arguments: P.args, **named: P.kwargs
    ) -> tuple[Any, list[Any]]:
        if self.lost is not None:
            raise DeviceError(self.lost)
        status, *values = function(*arguments, **named)
        return status, values

    def _fail(self, function: str, status: Any) -> None:
        what = f"{function}: {getattr(status, 'name', status)} ({int(status)})"
        if int(status) in STICKY:
            self.lost = f"CUDA failed in {what}; this process can't use the device any more: restart it"
            raise DeviceError(self.lost)
        if int(status) in CAPTURE:
            raise CaptureError(f"CUDA refused to record in {what}")
        if int(status) == OUT_OF_MEMORY:
            raise EngineError(f"the device has no memory left ({what}); ask for a smaller max_len or fewer slots")
        raise EngineError(f"CUDA failed in {what}")
