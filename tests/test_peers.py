"""The page on performance, and the programs of the peers that it compares."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import page
from benchmarks.peers.command import RESULTS
from benchmarks.peers.environments import HERE
from benchmarks.peers.peer import OURS, PEERS
from tests.suite.tables import each

ROOT = Path(__file__).parents[1]
MOST_LINES = 100
FIGURES = ("steps_per_second", "cpu_ms_per_step", "peak_mib", "first_output_seconds", "p50_ms", "p99_ms")


def made_up() -> dict[str, Any]:
    """Return a report in which the figures of each peer are twice those of the one before it."""
    return {
        "day": "2026-01-02",
        "rounds": 3,
        "machine": {"cpus": 2, "load": 0.1, "python": "3.11.7"},
        "peers": {
            name: {
                "figures": {one: {"min": 2**at, "median": 2**at, "max": 3 * 2**at} for one in FIGURES},
                "kill": {"effects": 400, "before_the_kill": 160, "lost": 0, "repeated": at},
                "install_seconds": 12.3,
                "lines": 40,
                "processes": 1,
            }
            for at, name in enumerate(PEERS)
        },
    }


def test_the_page_names_each_peer_and_its_ratio() -> None:
    text = page.page(made_up())
    for at, (name, peer) in enumerate(PEERS.items()):
        row = next(line for line in text.splitlines() if line.startswith(f"| {peer.title} |"))
        assert row.split(" | ")[2] == f"{2**at:.2g}", name


def test_page_and_plots_are_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DOCS", tmp_path)
    written: list[dict[str, bytes]] = []
    for _ in range(2):
        page.write_page(json.loads(json.dumps(made_up())))
        written.append({one.name: one.read_bytes() for one in sorted(tmp_path.rglob("*.*"))})
    assert written[0] == written[1]
    assert sorted(written[0]) == ["performance-cpu.svg", "performance-latency.svg", "performance.md"]


def test_the_page_in_docs_is_that_of_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = page.DOCS
    assert RESULTS.exists() == (docs / "performance.md").exists()
    if not RESULTS.exists():
        return
    monkeypatch.setattr(page, "DOCS", tmp_path)
    page.write_page(json.loads(RESULTS.read_text()))
    for one in tmp_path.rglob("*.*"):
        assert one.read_bytes() == (docs / one.relative_to(tmp_path)).read_bytes(), one.name


@each("name", PEERS)
def test_programs_are_short_and_have_locks(name: str) -> None:
    peer = PEERS[name]
    assert len((HERE / "programs" / peer.file).read_text().splitlines()) <= MOST_LINES
    assert peer.lock is None or "--hash=sha256:" in (HERE / "locks" / f"{peer.lock}.txt").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["handwritten", OURS, "restate", "dbos", "langgraph"])
def test_a_peer_loses_nothing_when_it_is_killed(name: str) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "peers",
        "--peer",
        name,
        "--rounds",
        "1",
        "--scale",
        "0.05",
    ]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert json.loads(found.stdout)["peers"][name]["kill"]["lost"] == 0
