"""How far each product's input is smoothed before it becomes int8, and whether it should.

SmoothQuant divides channel c of the input by largest_c^alpha / weight_c^(1 - alpha). Which alpha is best differs from
product to product, so each gets the one of a few that changes its outputs least on calibration rows.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dflash_engines.lowerings.int8_activations import STEPS, InputRange
from dflash_engines.lowerings.quantized_weights import matrix, products
from dflash_export.precision.calibration import Seen

ALPHAS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)
# Of a product's outputs, squared and relative. One that loses more keeps its input as it is, and its weights int8.
MOST_LOST = 0.01
_COLUMNS = 256  # of the weight, evenly spaced, that alphas are compared on
Matrix = NDArray[np.float32]


def input_ranges(model: ir.Model, inputs: Mapping[str, Seen]) -> dict[str, InputRange]:
    """Ranges of the products whose input may become int8."""
    found = {}
    for node in products(model.graph, keep=()):
        if node.name is not None and node.name in inputs:
            choice, lost = best_range(matrix(node), inputs[node.name])
            if lost <= MOST_LOST:
                found[node.name] = choice
    return found


def best_range(weight: Matrix, seen: Seen) -> tuple[InputRange, float]:
    """The range that changes the product's outputs least, and the share of them that it loses."""
    largest, rows = seen.largest.numpy(), seen.rows.numpy()
    columns = weight[:, np.linspace(0, weight.shape[1] - 1, min(_COLUMNS, weight.shape[1])).astype(int)]
    widths = np.abs(weight).max(1)
    candidates = [_range(largest, widths, alpha) for alpha in ALPHAS]
    losses = [_lost(rows, columns, candidate) for candidate in candidates]
    best = int(np.argmin(losses))
    return candidates[best], losses[best]


def _range(largest: Matrix, widths: Matrix, alpha: float) -> InputRange:
    smoothing = (np.maximum(largest, 1e-5) ** alpha / np.maximum(widths, 1e-5) ** (1 - alpha)).astype(np.float32)
    if alpha == 0:
        smoothing = np.ones(largest.shape, np.float32)
    return InputRange(smoothing=smoothing, largest=float((largest / smoothing).max()) or 1.0)


def _lost(rows: Matrix, columns: Matrix, choice: InputRange) -> float:
    """Mean over rows of the squared error over the squared output."""
    step = choice.largest / STEPS
    x = np.clip(np.rint(rows / choice.smoothing / step), -STEPS - 1, STEPS) * step
    weight = columns * choice.smoothing[:, None]
    steps = np.maximum(np.abs(weight).max(0), 1e-12) / STEPS
    off = x @ (np.rint(weight / steps) * steps) - rows @ columns
    size = np.square(rows @ columns).sum(1)
    return float((np.square(off).sum(1) / np.maximum(size, 1e-12)).mean())
