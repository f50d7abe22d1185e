"""Runs the application until SIGTERM or Ctrl-C: then nothing new is taken in, and what runs may finish."""

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from dflash_engines.errors import EngineError
from dflash_runtime.serving.http.app import create_app
from dflash_runtime.serving.http.request_log import JsonLines
from dflash_runtime.serving.http.service import Service

LARGEST_HEAD = 64 * 1024  # bytes of a request's line and headers
MOST_CONNECTIONS = 1024
log = logging.getLogger("dflash.server")


def serve(service: Service, listening: socket.socket) -> None:
    """Serve on a socket that listens; closes it. Raises the DflashError that kept the model from being loaded."""
    _log_as_json()
    faults: list[BaseException] = []

    def stop(fault: BaseException) -> None:
        faults.append(fault)
        server.should_exit = True

    server = _Server(service, uvicorn_config(service, stop))
    host, port = listening.getsockname()[:2]
    log.info("listening", extra={"host": host, "port": port, "model": service.settings.model})
    server.run(sockets=[listening])
    if faults:
        raise faults[0]
    log.info("ended")


def listen(host: str, port: int, stall_timeout: float) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises EngineError when the address can't be had.

    The kernel drops a connection whose client doesn't take what was sent for `stall_timeout` seconds.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except OSError as e:
        raise EngineError(f"can't listen on {host}:{port}: {e.strerror}; choose another --host or --port") from e
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_timeout * 1000))
    return listening


def uvicorn_config(service: Service, on_failure: Callable[[BaseException], object]) -> uvicorn.Config:
    """Our own logs instead of its access log; only h11 has a limit on the size of headers."""
    return uvicorn.Config(
        create_app(service, on_failure),
        http="h11",
        ws="none",
        h11_max_incomplete_event_size=LARGEST_HEAD,
        limit_concurrency=MOST_CONNECTIONS,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(service.settings.drain_timeout) + 5,  # by then all answers have ended
    )


class _Server(uvicorn.Server):
    """Drains the service while connections are being closed."""

    def __init__(self, service: Service, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends with exit code 0; a second Ctrl-C doesn't wait."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers that run may finish, and are sent."""
        log.info("draining")
        draining = asyncio.create_task(asyncio.to_thread(self._service.close))
        await super().shutdown(sockets)
        await draining


def _log_as_json() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    threading.excepthook = _log_fault


def _log_fault(fault: threading.ExceptHookArgs) -> None:
    """A thread has died, the engine's most likely."""
    trace = (fault.exc_type, fault.exc_value or fault.exc_type(), fault.exc_traceback)
    log.critical("a thread died", exc_info=trace, extra={"thread": fault.thread.name if fault.thread else None})
