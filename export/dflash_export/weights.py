"""One external data file for all programs of a bundle: each distinct tensor is stored once, whoever uses it."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir

FILE = "weights.bin"
ALIGNMENT = 4096  # whole pages, so that a backend can map tensors instead of reading them
SMALLEST = 1024  # bytes; smaller tensors stay in the graph, where shape inference needs their values


class WeightFile:
    """Appends tensors to one file and remembers where each content lies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._places: dict[bytes, tuple[int, int]] = {}

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def place(self, array: np.ndarray) -> tuple[int, int]:
        """(offset, length) in bytes of the array's content, written now unless it is there already."""
        data = np.ascontiguousarray(array)
        content = data.reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(content).digest()
        if digest not in self._places:
            self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
            self._places[digest] = (self._file.tell(), content.nbytes)
            self._file.write(content)
        return self._places[digest]

    def take(self, model: ir.Model, advance: Callable[[int], object] = lambda _: None) -> None:
        """Move the model's larger initialisers into the file; `advance` is told the bytes of each."""
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < SMALLEST:
                continue
            offset, length = self.place(_content(tensor))
            value.const_value = ir.ExternalTensor(
                FILE, offset, length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or "",
                base_dir=self._path.parent,
            )  # fmt: skip
            advance(length)


def _content(tensor: ir.TensorProtocol) -> np.ndarray:
    """What lies in the file; NumPy spends a byte on each int4, ONNX half of one."""
    return np.frombuffer(tensor.tobytes(), np.uint8) if tensor.dtype.bitwidth < 8 else tensor.numpy()
