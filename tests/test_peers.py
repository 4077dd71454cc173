"""The page on performance, and the programs of the peers that it compares."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import page
from benchmarks.peers.command import RESULTS
from benchmarks.peers.environments import HERE
from benchmarks.peers.peer import OURS, OURS_KAFKA, PEERS
from tests.suite.tables import each_case

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
                "figures": {figure: {"min": 2**at, "median": 2**at, "max": 3 * 2**at} for figure in FIGURES},
                "kill": {
                    "effects": 400,
                    "before_the_kill": 160,
                    "lost": 0,
                    "repeated": at,
                    "repeated_after_record": 0,
                    "works_again_seconds": 2 * at,
                },
                "install_seconds": 12.3,
                "lines": 40,
                "processes": 1,
            }
            for at, name in enumerate(PEERS)
        },
    }


PROGRAMS = HERE / "programs"


def names_defined_in(program: Path) -> set[str]:
    """Return the names that the top level of a program defines or imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@each_case("program", sorted(PROGRAMS.glob("*.py"), key=str))
def test_a_program_imports_only_what_the_others_define(program: Path) -> None:
    missing = {
        alias.name
        for node in ast.walk(ast.parse(program.read_text()))
        if isinstance(node, ast.ImportFrom) and (source := PROGRAMS / f"{node.module}.py").exists()
        for alias in node.names
        if alias.name not in names_defined_in(source)
    }
    assert not missing


def test_the_page_names_each_peer_and_its_ratio() -> None:
    text = page.page(made_up())
    for at, (name, peer) in enumerate(PEERS.items()):
        row = next(line for line in text.splitlines() if line.startswith(f"| {peer.title} |"))
        assert row.split(" | ")[2] == f"{2**at:.2g}", name


def test_page_and_plots_are_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DOCS", tmp_path)
    monkeypatch.setattr(page, "README", tmp_path / "README.md")
    page.README.write_text(f"a\n{page.README_BEGIN}old {page.README_END} c\nb\n")
    written: list[dict[str, bytes]] = []
    for _ in range(2):
        page.write_page(json.loads(json.dumps(made_up())))
        written.append({path.name: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))})
    assert written[0] == written[1]
    assert sorted(written[0]) == [
        "README.md",
        "performance-cpu.svg",
        "performance-latency.svg",
        "performance.md",
    ]
    assert page.README.read_text() == f"a\n{page.readme_text(made_up())} c\nb\n"


def test_the_page_says_where_another_system_is_better() -> None:
    report = made_up()
    restate = report["peers"]["restate"]
    restate["figures"]["p99_ms"]["median"] = 0.5
    restate["figures"]["steps_per_second"]["median"] = 0.5
    report["peers"]["dbos"]["lines"] = 12
    losses = page.losses(report["peers"])
    assert "- p99, ms: Restate 1.7." in losses
    assert "- lines of code: DBOS 3.4." in losses
    speed = next(line for line in losses if line.startswith("- steps per second"))
    assert "Restate" not in speed
    assert all(line in page.page(report) for line in losses)


def test_the_page_in_docs_is_that_of_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = page.DOCS
    assert RESULTS.exists() == (docs / "performance.md").exists()
    if not RESULTS.exists():
        return
    assert page.readme_text(json.loads(RESULTS.read_text())) in page.README.read_text()
    monkeypatch.setattr(page, "DOCS", tmp_path)
    monkeypatch.setattr(page, "README", tmp_path.parent / "README.md")
    page.README.touch()
    page.write_page(json.loads(RESULTS.read_text()))
    for path in tmp_path.rglob("*.*"):
        assert path.read_bytes() == (docs / path.relative_to(tmp_path)).read_bytes(), path.name


@each_case("name", PEERS)
def test_programs_are_short_and_have_locks(name: str) -> None:
    peer = PEERS[name]
    texts = [(HERE / "programs" / file).read_text() for file in peer.files]
    assert sum(len(text.splitlines()) for text in texts) <= MOST_LINES, name
    assert peer.lock is None or "--hash=sha256:" in (HERE / "locks" / f"{peer.lock}.txt").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["handwritten", OURS, OURS_KAFKA, "restate", "dbos", "langgraph"])
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
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    kill = json.loads(result.stdout)["peers"][name]["kill"]
    assert kill["lost"] == 0
    # LangGraph writes the results of tasks in the background.
    assert name == "langgraph" or kill["repeated_after_record"] == 0
