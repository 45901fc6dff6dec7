"""Figures as Markdown: a row per figure, a column per server, medians with their ranges."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

Runs = dict[str, dict[str, list[float]]]  # server -> figure -> one value per round


def median(runs: Runs, kind: str, name: str) -> float:
    return statistics.median(runs[kind][name])


def table(
    runs: Runs, kinds: list[str], more: Mapping[str, Callable[[str], str]] | None = None
) -> str:
    """Every figure of the first server; `more` adds columns, each a function of the figure."""
    columns = more or {}
    lines = [
        "| | " + " | ".join([*kinds, *columns]) + " |",
        "|---" * (len(kinds) + len(columns) + 1) + "|",
    ]
    for name in runs[kinds[0]]:
        cells = [_cell(runs[kind].get(name, [])) for kind in kinds]
        cells += [column(name) for column in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    middle = _figure(statistics.median(values))
    return (
        f"{middle} ({_figure(min(values))}–{_figure(max(values))})" if len(values) > 1 else middle
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
