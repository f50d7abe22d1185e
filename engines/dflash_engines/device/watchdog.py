"""Nothing on the device may take for ever: who waits too long gives the device up, with the reason.

Waiting is done by looking, so that a device that hangs can't hold the thread. Where a call into the driver hangs by
itself, no Python of that thread runs any more: then another thread ends the process.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from dflash_engines.device.device import Device, Event
from dflash_engines.errors import DeviceError

EXIT_CODE = 70  # sysexits.h: an internal software error
PATIENCE = 30.0  # seconds; the longest honest launch, a prefill chunk of a large target, takes under one
_LOOKS = 2000  # before a wait goes to sleep between looks
_NAP = 50e-6  # seconds


def exit_process(reason: str) -> None:
    """Say why and end at once: destructors would call into a device that no longer answers."""
    sys.stderr.write(f"dflash: {reason}\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Watchdog:
    """Watches over an engine's waits, and over its calls into the driver."""

    def __init__(
        self, device: Device, patience: float = PATIENCE, on_hang: Callable[[str], None] = exit_process
    ) -> None:
        self._device, self.patience, self._on_hang = device, patience, on_hang
        self._call_began: float | None = None
        self._released = threading.Event()
        threading.Thread(target=self._watch, name="dflash-watchdog", daemon=True).start()

    def wait(self, event: Event) -> None:
        """Return when the event is done. Raises DeviceError, and gives the device up, when it takes too long."""
        begin, looks = monotonic(), 0
        while not event.done():
            if monotonic() - begin > self.patience:
                self._give_up()
            looks += 1
            if looks > _LOOKS:
                sleep(_NAP)

    @contextmanager
    def over_call(self) -> Iterator[None]:
        """Around calls into the driver: one that doesn't return ends the process."""
        self._call_began = monotonic()
        try:
            yield
        finally:
            self._call_began = None

    def release(self) -> None:
        """Watch no more."""
        self._released.set()

    def _watch(self) -> None:
        while not self._released.wait(self.patience / 4):
            began = self._call_began
            if began is not None and monotonic() - began > self.patience:
                self._on_hang(self._reason("a call into its driver"))
                return

    def _give_up(self) -> None:
        reason = self._reason("launched work")
        self._device.lose(reason)
        raise DeviceError(reason)

    def _reason(self, what: str) -> str:
        return (
            f"{self._device.name} did not finish {what} within {self.patience:g} s; it can't be used by this process "
            "any more: restart it, and look at the driver's log (dmesg, nvidia-smi -q)"
        )
