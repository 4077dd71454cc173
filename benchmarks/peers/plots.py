"""Plots of the page as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from benchmarks.peers.peer import OURS

WIDTH = 720
LEFT = 230
BAR = 22
GAP = 10
FONT = 'font-family="sans-serif" font-size="13"'


def bars(title: str, values: Mapping[str, Mapping[str, float]]) -> str:
    """Return an SVG with a bar for each median and a line from the minimum to the maximum, on a log scale."""
    least = math.log10(min(limits["min"] for limits in values.values())) - 0.2
    most = math.log10(max(limits["max"] for limits in values.values())) + 0.05

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - least) / (most - least) * (WIDTH - LEFT - 90)

    height = 40 + len(values) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, spread) in enumerate(sorted(values.items(), key=lambda item: item[1]["median"])):
        top = 34 + number * (BAR + GAP)
        color = "#c2410c" if name.startswith(OURS) else "#64748b"
        middle = f"{top + BAR / 2:.0f}"
        long = f"{x(spread['median']) - LEFT:.1f}"
        least_x = f"{x(spread['min']):.1f}"
        most_x = f"{x(spread['max']):.1f}"
        parts += [
            f'<text x="{LEFT - 8}" y="{top + 16}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{long}" height="{BAR}" fill="{color}"/>',
            f'<line x1="{least_x}" x2="{most_x}" y1="{middle}" y2="{middle}" stroke="#000"/>',
            f'<text x="{x(spread["max"]) + 6:.1f}" y="{top + 16}">{spread["median"]:.3g}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
