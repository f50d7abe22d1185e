"""How much host memory something takes at its peak. Pages mapped from a file, as weights are, count apart."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EVERY = 0.01  # seconds
_STATUS = Path("/proc/self/status")


class Peak:
    """The most that was seen, in bytes; 0 where the system doesn't tell."""

    def __init__(self) -> None:
        self.begin = self.most = _own_bytes()

    @property
    def nbytes(self) -> int:
        """Above what there was in the beginning."""
        return self.most - self.begin


@contextmanager
def watched() -> Iterator[Peak]:
    """Watch this process's own memory while the block runs."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY):
            peak.most = max(peak.most, _own_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _own_bytes() -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
