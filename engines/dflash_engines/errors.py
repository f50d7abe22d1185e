"""The errors a user may meet. Each message says what is wrong, where, and how to put it right.

DflashError
├── BundleError      a bundle is missing, partial, tampered with, or of another version
├── ContractError    a program's bindings are not the ones the contract declares
├── CheckpointError  a target or drafter checkpoint cannot be compiled (raised by the exporter)
├── EngineError      a backend is not installed, not available on this machine, or failed in a call
│   ├── CaptureError  work that can't be recorded in a graph; it is done without one
│   └── DeviceError   this process can't use the device any more: say why, and exit
└── RequestError     a request cannot be served as asked (also a ValueError)
"""


class DflashError(Exception):
    """Base of all errors that are meant for the user."""


class BundleError(DflashError):
    """A bundle is missing, partial, tampered with, or of another version."""


class ContractError(DflashError):
    """A program's bindings are not the ones the contract declares."""


class CheckpointError(DflashError):
    """A target or drafter checkpoint cannot be compiled."""


class EngineError(DflashError):
    """A backend is not installed, not available on this machine, or failed in a call."""


class CaptureError(EngineError):
    """Work can't be recorded in a graph."""


class DeviceError(EngineError):
    """This process can't use the device any more; only a new process can."""


class RequestError(DflashError, ValueError):
    """A request cannot be served as asked."""
