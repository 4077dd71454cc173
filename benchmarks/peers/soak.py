"""The section of ``docs/performance.md`` about hours under load, from the figures of ``tests.soak``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "soak.json"

FLAT = ("Python cycles", "Java heap", "threads", "journal rows")
"""Resources that the page leaves out: none of them grew, or another row shows the same."""


def section() -> str:
    """Return the text of the section."""
    run: dict[str, Any] = json.loads(FIGURES.read_text())
    reports: Mapping[str, Mapping[str, Any]] = run["reports"]
    totals = {
        name: sum(report[name] for report in reports.values())
        for name in ("inputs", "new_keys", "lost", "doubled")
    }
    rows = [
        f"| {name} | {' | '.join(_cells(reports, name, limits))} |"
        for name, limits in run["limits"].items()
        if name not in FLAT
    ]
    return "\n".join(
        [
            f"{run['day']}, {len(reports)} jobs of {run['minutes'] / len(reports):g} minutes each: "
            f"{totals['inputs']:,} inputs at {run['rate']:g} a second, "
            f"{totals['new_keys']:,} with new keys, {len(reports)} kills, "
            f"load {_loads(reports)} on {run['cpus']} CPUs; "
            f"{totals['lost']} lost, {totals['doubled']} twice. {_verdict(reports)}",
            "",
            "| resource (bytes in KiB) | per 1,000 inputs (limit) | per new key (limit) |",
            "| --- | --- | --- |",
            *rows,
        ]
    )


def _loads(reports: Mapping[str, Mapping[str, Any]]) -> str:
    loads = sorted(report["load"] for report in reports.values())
    return f"{loads[0]:.0f} to {loads[-1]:.0f}"


def _verdict(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sentence about what grows, and about what the run was too short for."""
    sentences: list[str] = []
    for text, name in (("Certainly above a limit", "growing"), ("Not judged", "not_judged")):
        titles: dict[str, list[str]] = {}
        for title, report in reports.items():
            for resource in report[name]:
                titles.setdefault(resource, []).append(title.replace(", ", "/"))
        if titles:
            places = "; ".join(f"{resource} ({' and '.join(titles[resource])})" for resource in titles)
            sentences.append(f"{text}: {places}.")
    return " ".join(sentences) or "No slope is certainly above its limit."


def _cells(reports: Mapping[str, Mapping[str, Any]], name: str, limits: Mapping[str, float]) -> list[str]:
    """Return the largest slopes of a resource, each with half of its 95 % interval and with its limit."""
    cells: list[str] = []
    for kind, limit in limits.items():
        slopes = [report["slopes"][name][kind] for report in reports.values() if name in report["slopes"]]
        value, error = max(slopes) if slopes else (None, None)
        cells.append("" if value is None else f"{value:.2g}±{error:.2g}({limit:g})")
    return cells
