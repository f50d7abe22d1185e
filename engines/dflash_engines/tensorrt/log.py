"""TensorRT's own words. It logs what went wrong and returns nothing; what it logs is kept for our errors."""

from functools import cache
from types import ModuleType
from typing import Any

_KEPT = 8
# Each int64 binding is announced, and each machine without a GPU.
_USUAL = ("has Int64 binding", "CUDA driver version is insufficient", "Using global log stream")


@cache
def kept_log(trt: ModuleType) -> Any:
    """A logger that keeps the last warnings and errors in `messages`; `told()` is them as one text.

    TensorRT takes the first logger of a process for all that follows: there had better be one.
    """

    class KeptLog(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.messages: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.WARNING and not any(usual in message for usual in _USUAL):
                self.messages = [*self.messages[1 - _KEPT :], message.strip()]

        def clear(self) -> None:
            self.messages = []

        def told(self) -> str:
            return "; ".join(self.messages) or "it gave no reason"

    return KeptLog()
