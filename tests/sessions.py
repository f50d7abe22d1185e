"""ONNX Runtime sessions for tests that look at a program by itself."""

from pathlib import Path

import onnxruntime as ort

from dflash_engines.onnxruntime_cpu import use_threads


def session(model: bytes | Path) -> ort.InferenceSession:
    """A CPU session in the process's one thread pool."""
    use_threads(None)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
