"""Writes ``docs/performance.md``, its plots and a paragraph of README from the JSON of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import soak
from benchmarks.peers.peer import OURS, OURS_KAFKA, PEERS, Peer
from benchmarks.peers.plots import bars

DOCS = Path(__file__).parents[2] / "docs"
TEMPLATE = Path(__file__).parent / "page.md"
README = DOCS.parent / "README.md"
README_BEGIN = "A durable step costs "
README_END = "where this package loses."


def write_page(report: Mapping[str, Any]) -> None:
    """Write the page and the plots."""
    plots = {
        "performance-cpu.svg": ("CPU per durable step, ms (log scale)", "cpu_ms_per_step"),
        "performance-latency.svg": ("p99 latency at 20 inputs per second, ms (log scale)", "p99_ms"),
    }
    (DOCS / "images").mkdir(exist_ok=True)
    for name, (title, figure) in plots.items():
        values = {
            PEERS[peer_name].title: peer_report["figures"][figure]
            for peer_name, peer_report in report["peers"].items()
        }
        (DOCS / "images" / name).write_text(bars(title, values))
    (DOCS / "performance.md").write_text(page(report))
    shown = re.sub(f"{README_BEGIN}.*?{README_END}", lambda _: readme_text(report), README.read_text())
    README.write_text(shown)


def readme_text(report: Mapping[str, Any]) -> str:
    """Return the sentences of README with the costs."""
    peers = report["peers"]
    cost = peers[OURS]["figures"]["cpu_ms_per_step"]["median"]
    costs = {name: peer_report["figures"]["cpu_ms_per_step"]["median"] for name, peer_report in peers.items()}
    costs_text = ", ".join(
        f"{costs[name]:.2g} {'with' if name == 'handwritten' else 'in'} {_name(name)}"
        for name in ("restate", "dbos", "langgraph", "handwritten")
        if name in costs
    )
    return (
        f"{README_BEGIN}{cost:.2g} ms of CPU (`.venv/bin/python -m benchmarks peers`). "
        f"The same step costs {costs_text}. "
        f"[Performance](docs/performance.md) has all figures, and says {README_END}"
    )


def losses(peers: Mapping[str, Any]) -> list[str]:
    """Return a line for each figure in which another system is better than this package with SQLite."""
    lines: list[str] = []
    for title, read, more_is_better in COMPARED:
        values = {
            name: value for name, peer_report in peers.items() if (value := read(peer_report)) is not None
        }
        if OURS not in values:
            continue
        ours = values.pop(OURS)
        better = {
            name: value
            for name, value in values.items()
            if name != OURS_KAFKA and (value > ours if more_is_better else value < ours)
        }
        ranked = sorted(better.items(), key=lambda item: item[1], reverse=more_is_better)
        names = ", ".join("by hand" if name == "handwritten" else _name(name) for name, _ in ranked)
        if names:
            lines.append(f"- {title}: {names}.")
    return lines


def _median(figure: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda peer_report: peer_report["figures"][figure]["median"]


COMPARED: tuple[tuple[str, Callable[[Mapping[str, Any]], float | None], bool], ...] = (
    ("CPU per step, ms", _median("cpu_ms_per_step"), False),
    ("steps per second", _median("steps_per_second"), True),
    ("p50, ms", _median("p50_ms"), False),
    ("p99, ms", _median("p99_ms"), False),
    ("peak memory, MiB", _median("peak_mib"), False),
    ("seconds until the first result", _median("first_output_seconds"), False),
    ("seconds to install", lambda peer_report: peer_report["install_seconds"], False),
    (
        "seconds from the second start to the next step",
        lambda peer_report: _kill(peer_report, "works_again_seconds"),
        False,
    ),
    ("lines of code", lambda peer_report: peer_report["lines"], False),
    ("processes to start", lambda peer_report: peer_report["processes"], False),
)
"""What is compared: its title, where it is, and whether more is better."""


def page(report: Mapping[str, Any]) -> str:
    """Return the text of the page."""
    peers = report["peers"]
    shown = [(PEERS[name], peer_report) for name, peer_report in peers.items()]
    return TEMPLATE.read_text().format(
        rounds=report["rounds"],
        day=report["day"],
        notes="".join(f"\n{note}" for note in report.get("notes", ())),
        cpus=report["machine"]["cpus"],
        python=report["machine"]["python"],
        soak=soak.section(),
        costs=_table(
            ("system", "CPU per step, ms", "times ours", "steps per second", "peak memory, MiB"),
            [
                (
                    peer.title,
                    _spread(peer_report["figures"]["cpu_ms_per_step"]),
                    f"{_ratio(peers, peer.name, 'cpu_ms_per_step'):.2g}",
                    f"{peer_report['figures']['steps_per_second']['median']:,.0f}",
                    f"{peer_report['figures']['peak_mib']['median']:.0f}",
                )
                for peer, peer_report in shown
            ],
        ),
        latencies=_table(
            ("system", "p50, ms", "p99, ms", "first result after, s"),
            [
                (
                    peer.title,
                    f"{peer_report['figures']['p50_ms']['median']:.3g}",
                    _spread(peer_report["figures"]["p99_ms"]),
                    f"{peer_report['figures']['first_output_seconds']['median']:.3g}",
                )
                for peer, peer_report in shown
            ],
        ),
        kills=_table(
            ("system", "effects", "lost", "repeated", "of these, after step 2 began", "works again after, s"),
            [
                (
                    peer.title,
                    *(f"{peer_report['kill'][column]:.0f}" for column in KILL_COLUMNS),
                    f"{peer_report['kill']['works_again_seconds']:.1f}",
                )
                for peer, peer_report in shown
                if peer_report["kill"] is not None
            ],
        ),
        guarantees="\n".join(_guarantee(peer, peer_report) for peer, peer_report in shown),
        losses="\n".join(losses(peers) or ["In no figure of this run."]),
    )


KILL_COLUMNS = ("effects", "lost", "repeated", "repeated_after_record")


def _guarantee(peer: Peer, one: Mapping[str, Any]) -> str:
    """Return the line of a system: its guarantee, its settings, and what it takes."""
    install = "" if one["install_seconds"] is None else f", {one['install_seconds']:.0f} s"
    takes = (
        f"{one['lines']} lines, {one['processes']} process{'' if one['processes'] == 1 else 'es'}{install}"
    )
    return f"- **{peer.title}** ({takes}): {peer.durable}. Settings: {peer.settings}."


def _kill(one: Mapping[str, Any], column: str) -> float | None:
    return None if one["kill"] is None else one["kill"][column]


def _ratio(peers: Mapping[str, Any], name: str, figure: str) -> float:
    ours = peers[OURS]["figures"][figure]["median"] if OURS in peers else math.nan
    return peers[name]["figures"][figure]["median"] / ours


def _name(name: str) -> str:
    return PEERS[name].title.partition(",")[0]


def _spread(one: Mapping[str, float]) -> str:
    shown = (
        f"{one[name]:,.0f}" if one["median"] >= 100 else f"{one[name]:.3g}"
        for name in ("median", "min", "max")
    )
    return "{} [{}, {}]".format(*shown)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
