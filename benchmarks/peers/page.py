"""Writes ``docs/performance.md`` and its plots from the JSON of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import OURS, PEERS

DOCS = Path(__file__).parents[2] / "docs"
WIDTH, LEFT, BAR, GAP = 720, 230, 22, 10
FONT = 'font-family="sans-serif" font-size="13"'


def write_page(report: Mapping[str, Any]) -> None:
    """Write the page and the plots."""
    plots = {
        "performance-cpu.svg": ("CPU per durable step, ms (log scale)", "cpu_ms_per_step"),
        "performance-latency.svg": ("p99 latency at 20 inputs per second, ms (log scale)", "p99_ms"),
    }
    (DOCS / "images").mkdir(exist_ok=True)
    for name, (title, figure) in plots.items():
        values = {PEERS[one].title: found["figures"][figure] for one, found in report["peers"].items()}
        (DOCS / "images" / name).write_text(bars(title, values))
    (DOCS / "performance.md").write_text(page(report))


def bars(title: str, values: Mapping[str, Mapping[str, float]]) -> str:
    """Return an SVG with a bar for each median and a line from the minimum to the maximum, on a log scale."""
    least = math.log10(min(one["min"] for one in values.values())) - 0.2
    most = math.log10(max(one["max"] for one in values.values())) + 0.05

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - least) / (most - least) * (WIDTH - LEFT - 90)

    height = 40 + len(values) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, one) in enumerate(sorted(values.items(), key=lambda item: item[1]["median"])):
        top = 34 + number * (BAR + GAP)
        color = "#c2410c" if name == PEERS[OURS].title else "#64748b"
        middle, long = f"{top + BAR / 2:.0f}", f"{x(one['median']) - LEFT:.1f}"
        least_x, most_x = f"{x(one['min']):.1f}", f"{x(one['max']):.1f}"
        parts += [
            f'<text x="{LEFT - 8}" y="{top + 16}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{long}" height="{BAR}" fill="{color}"/>',
            f'<line x1="{least_x}" x2="{most_x}" y1="{middle}" y2="{middle}" stroke="#000"/>',
            f'<text x="{x(one["max"]) + 6:.1f}" y="{top + 16}">{one["median"]:.3g}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def page(report: Mapping[str, Any]) -> str:
    """Return the text of the page."""
    peers = report["peers"]
    machine = report["machine"]
    lines = [
        "# Performance",
        "",
        "What a durable step costs here and in other systems, for the same workload: two durable steps and",
        "a counter per input, 5,000 keys. You can repeat it from a fresh clone:",
        "",
        "```shell",
        ".venv/bin/python -m benchmarks peers --out benchmarks/peers/results.json",
        ".venv/bin/python -m benchmarks peers --page   # writes this page from the JSON",
        "```",
        "",
        f"Medians of {report['rounds']} interleaved rounds on {machine['cpus']} cores, {report['day']}, "
        f"Python {machine['python']}; in brackets the minimum and the maximum.",
        "",
        "![CPU per durable step](images/performance-cpu.svg)",
        "",
        _table(
            ("system", "CPU per step, ms", "of ours", "steps per second", "peak memory, MiB"),
            [
                (
                    PEERS[name].title,
                    _spread(one["figures"]["cpu_ms_per_step"]),
                    f"{_ratio(peers, name, 'cpu_ms_per_step'):.2g}",
                    _spread(one["figures"]["steps_per_second"]),
                    f"{one['figures']['peak_mib']['median']:.0f}",
                )
                for name, one in peers.items()
            ],
        ),
        "",
        "CPU counts all processes of a system, but not the client that sends inputs, after a fifth of them.",
        "",
        "## Latency",
        "",
        "![p99 latency](images/performance-latency.svg)",
        "",
        _table(
            ("system", "p50, ms", "p99, ms", "first result after, s"),
            [
                (
                    PEERS[name].title,
                    _spread(one["figures"]["p50_ms"]),
                    _spread(one["figures"]["p99_ms"]),
                    _spread(one["figures"]["first_output_seconds"]),
                )
                for name, one in peers.items()
            ],
        ),
        "",
        "## After `kill -9`",
        "",
        "The worker is killed in the middle and started again with the same command. Each step's effect is a",
        "line in a file. In every system, a step that was in flight at the kill may repeat: pass its",
        "idempotency key to the service.",
        "",
        _table(
            ("system", "effects", "lost", "repeated", "what is durable, and when"),
            [
                (
                    PEERS[name].title,
                    f"{one['kill']['effects']:.0f}",
                    f"{one['kill']['lost']:.0f}",
                    f"{one['kill']['repeated']:.0f}",
                    PEERS[name].durable,
                )
                for name, one in peers.items()
            ],
        ),
        "",
        "## What it takes",
        "",
        _table(
            ("system", "settings", "lines of code", "processes", "install, s"),
            [
                (
                    PEERS[name].title,
                    PEERS[name].settings,
                    str(one["lines"]),
                    str(one["processes"]),
                    f"{one['install_seconds']:.0f}" if one["install_seconds"] > 1 else "-",
                )
                for name, one in peers.items()
            ],
        ),
        "",
        "Two systems are missing. Temporal: no package registry has its server as a binary. Apache Flink",
        "Agents 0.3.1: its package downloads JARs while it is installed, and they were not found (404).",
        "The programs are in `benchmarks/peers/programs`, their locks in `benchmarks/peers/locks`.",
        "",
    ]
    return "\n".join(lines)


def _ratio(peers: Mapping[str, Any], name: str, figure: str) -> float:
    ours = peers[OURS]["figures"][figure]["median"] if OURS in peers else math.nan
    return peers[name]["figures"][figure]["median"] / ours


def _spread(one: Mapping[str, float]) -> str:
    shown = (
        f"{one[name]:,.0f}" if one["median"] >= 100 else f"{one[name]:.3g}"
        for name in ("median", "min", "max")
    )
    return "{} [{}, {}]".format(*shown)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
