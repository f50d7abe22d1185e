"""The thread that drives a scheduler, and the guards around it: closing, draining, forking."""

import logging
import os
from collections.abc import Sequence
from threading import Event, Thread, current_thread
from weakref import finalize

from dflash_engines.errors import DeviceError
from dflash_runtime.serving.errors import ClosedError
from dflash_runtime.serving.generation import Generation
from dflash_runtime.serving.scheduler import Scheduler
from dflash_runtime.serving.waiting_queue import WaitingQueue

log = logging.getLogger("dflash.engine")


class EngineThread:
    """Runs from its making until `close`, its end as garbage, or the interpreter's.

    Methods may be called from any thread of the process that made it.
    """

    def __init__(self, scheduler: Scheduler, queue: WaitingQueue) -> None:
        self._queue, self._process, self._stop = queue, os.getpid(), Event()
        self._thread = Thread(target=_drive, args=(scheduler, queue, self._stop), name="dflash-engine", daemon=True)
        self._thread.start()
        self._end = finalize(self, _end, self._process, self._thread, queue, self._stop)

    @property
    def alive(self) -> bool:
        """Whether requests are being served, by this process."""
        return os.getpid() == self._process and self._thread.is_alive()

    def submit(self, generations: Sequence[Generation]) -> None:
        """Queue all or none. Raises QueueFullError, ClosedError or RequestError."""
        if os.getpid() != self._process:
            raise ClosedError(
                f"process {os.getpid()} was forked from {self._process}, which loaded the engine; "
                "the engine's threads don't exist here, so load the bundle after forking"
            )
        self._queue.put(generations)

    def close(self, *, drain: float | None) -> None:
        """Take in nothing more, and finish what was taken in, for up to `drain` seconds (None: until done).

        What is left then ends with ClosedError. Returns when the thread has ended; any number of calls is fine.
        """
        if os.getpid() == self._process:
            self._queue.close()
            self._thread.join(drain)
            self._end()


def _end(process: int, thread: Thread, queue: WaitingQueue, stop: Event) -> None:
    """Without its thread nothing may touch the engine, so wait for it; a forked process has no such thread."""
    if os.getpid() == process:
        stop.set()
        queue.close()
        if thread is not current_thread():  # garbage may be collected anywhere
            thread.join()


def _drive(scheduler: Scheduler, queue: WaitingQueue, stop: Event) -> None:
    fault = ClosedError("the service stopped on a fault of its own, see its log; start it again")
    try:
        while not stop.is_set() and not (queue.closed and scheduler.idle):
            scheduler.step()
            if scheduler.idle:
                queue.wait()
        fault = ClosedError("the service was shut down before the answer was whole")
    except DeviceError as lost:
        log.critical("the device is lost; start the process again", extra={"fault": str(lost)})
        fault = ClosedError(f"the service has lost its device: {lost}")
    finally:
        queue.close()
        scheduler.end_all(fault)
