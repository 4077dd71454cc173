"""``python -m benchmarks peers``: all peers in interleaved rounds, then one kill each; writes JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.environments import HERE, Environment, environment_of
from benchmarks.peers.page import write_page
from benchmarks.peers.peer import PEERS, Peer
from benchmarks.peers.running import Figures, PeerFailed, measure_kill, measure_latency, measure_rate

RESULTS = HERE / "results.json"
LATENCY_INPUTS = 300
KILL_INPUTS = 5000
"""The most inputs of a run with a kill: each step takes 2 ms there."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(arguments)
    if options.page:
        write_page(json.loads(RESULTS.read_text()))
        return 0
    # A supervisor ends this with SIGTERM: what was started ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    peers = [PEERS[name] for name in options.peer]
    report = measure(peers, options.rounds, options.scale)
    for file in {options.out, RESULTS if options.record else None} - {None}:
        file.write_text(json.dumps(report, indent=2) + "\n")
    if options.record:
        write_page(report)
    print(json.dumps(report))
    return 1 if report["failed"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers", description="Measures other systems with the same workload."
    )
    parser.add_argument(
        "--peer", type=_names, default=list(PEERS), help=f"of {','.join(PEERS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the inputs, for a quick run")
    parser.add_argument("--out", type=Path, help="write the JSON here")
    parser.add_argument(
        "--record", action="store_true", help=f"write {RESULTS.name} and docs/performance.md from it"
    )
    parser.add_argument("--page", action="store_true", help="only rewrite docs/performance.md")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - PEERS.keys():
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return names


def measure(peers: Sequence[Peer], rounds: int, scale: float) -> dict[str, Any]:
    """Measure peers; each round runs all of them, so that a slow minute hits all alike."""
    environments = {peer.name: environment_of(peer) for peer in peers}
    load = os.getloadavg()[0]
    rounds_by_peer: dict[str, list[Figures]] = defaultdict(list)
    kills: dict[str, Figures] = {}
    failed: list[str] = []
    for number in range(rounds):
        for peer in peers:
            with _reported(f"round {number + 1} {peer.name}", failed) as figures:
                figures |= _round(peer, environments[peer.name], scale)
                rounds_by_peer[peer.name].append(figures)
    for peer in peers:
        with _reported(f"kill {peer.name}", failed) as figures:
            inputs = min(KILL_INPUTS, max(200, int(peer.inputs * scale)))
            figures |= measure_kill(peer, environments[peer.name], inputs)
            kills[peer.name] = figures
    return {
        "day": f"{datetime.now(UTC):%Y-%m-%d}",
        "rounds": rounds,
        "machine": {"cpus": os.cpu_count(), "load": load, "python": platform.python_version()},
        "failed": failed,
        "peers": {
            peer.name: {
                "figures": _summaries(rounds_by_peer[peer.name]),
                "kill": kills.get(peer.name),
                "install_seconds": environments[peer.name].seconds,
                "lines": _lines(peer),
                "processes": sum(role.counted for role in peer.roles),
            }
            for peer in peers
            if rounds_by_peer[peer.name]
        },
    }


@contextlib.contextmanager
def _reported(what: str, failed: list[str]) -> Iterator[Figures]:
    """Print the figures of a run; one that fails costs its own figures only."""
    figures: Figures = {}
    start_seconds = time.monotonic()
    try:
        yield figures
    except PeerFailed as failure:
        failed.append(what)
        print(f"{what} FAILED: {failure}", file=sys.stderr, flush=True)
    else:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        print(f"{what} ({time.monotonic() - start_seconds:.0f} s): {shown}", file=sys.stderr, flush=True)


def _round(peer: Peer, environment: Environment, scale: float) -> Figures:
    rate = measure_rate(peer, environment, max(100, int(peer.inputs * scale)))
    return rate | measure_latency(peer, environment, max(40, int(LATENCY_INPUTS * scale)))


def _summaries(rounds: list[Figures]) -> dict[str, Figures]:
    columns = {name: [round_figures[name] for round_figures in rounds] for name in rounds[0]}
    return {
        name: {"min": min(values), "median": median(values), "max": max(values)}
        for name, values in columns.items()
    }


def _lines(peer: Peer) -> int:
    """Count the lines of a peer's program that are neither empty nor comments."""
    texts = [(HERE / "programs" / file).read_text() for file in peer.files]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines)
