"""The results as a table of plain lines."""

from collections.abc import Iterator
from typing import Any

from scripts.gpu_check.sections import Result


def lines(results: Result) -> Iterator[str]:
    """Two columns, indented by depth."""
    rows = list(_rows(results, 0))
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        yield f"{name:<{width}}  {value}".rstrip()


def _rows(values: Result, depth: int) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        label = "  " * depth + name.replace("_", " ")
        if isinstance(value, dict):
            yield label, ""
            yield from _rows(value, depth + 1)
        else:
            yield label, _shown(name, value)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, float) and "seconds" in name and value < 1:
        return f"{value * 1e3:.3f} ms"
    if name == "of_bandwidth":
        return f"{value:.1%}"
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= 1e6:
        return f"{value / 1e9:,.3f} G"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
