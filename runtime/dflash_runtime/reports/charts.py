"""Drawings as SVG text. Needs matplotlib, of the extra `bench`."""

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_SIZE = (7.2, 3.4)  # inches


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One line a series, through its (x, y)."""
    figure, axes = _axes(title, y_label)
    for name, points in series.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3.5, label=name)
    axes.set_xlabel(x_label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return _svg(figure)


def bars(title: str, y_label: str, groups: Mapping[str, Mapping[str, float]], level: float) -> str:
    """A group of bars for each key, one bar for each name in it; a line at `level` to compare with."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / max(len(names), 1)
    figure, axes = _axes(title, y_label)
    for place, name in enumerate(names):
        left = (place - (len(names) - 1) / 2) * width
        there = [(i + left, group[name]) for i, group in enumerate(groups.values()) if name in group]
        axes.bar([x for x, _ in there], [y for _, y in there], width, label=name)
    axes.axhline(level, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.legend(frameon=False)
    return _svg(figure)


def stacks(title: str, y_label: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """One bar for each key, its parts on top of each other."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    figure, axes = _axes(title, y_label)
    bottom = [0.0] * len(groups)
    for name in names:
        heights = [group.get(name, 0.0) for group in groups.values()]
        axes.bar(range(len(groups)), heights, 0.5, bottom=bottom, label=name)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(groups)), list(groups))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return _svg(figure)


def _axes(title: str, y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.set_ylabel(y_label)
    axes.tick_params(labelsize=8)
    return figure, axes


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]
