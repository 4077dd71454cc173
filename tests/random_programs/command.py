"""``python -m tests.random_programs``: many programs, in several processes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from tests.random_programs.running import ProgramFailed, run

SHARE = 25
"""How many programs a process takes at a time."""


def _share(
    programs: int,
    seed: int,
    keep_going: bool,
    left_out: frozenset[str],
    waits: bool,
    overtakes: bool,
    lags: bool,
) -> tuple[int, list[str]]:
    crashes = 0
    failures = list[str]()
    # After a failure the harness of the programs before is of no use any more.
    batch_size = 1 if keep_going else programs
    for number in range(seed, seed + programs, batch_size):
        try:
            crashes += run(batch_size, number, left_out=left_out, waits=waits, overtakes=overtakes, lags=lags)
        except ProgramFailed as failed:
            failures.append(str(failed))
            if not keep_going:
                break
    return crashes, failures


def run_in_processes(
    programs: int,
    seed: int,
    jobs: int,
    keep_going: bool = False,
    left_out: frozenset[str] = frozenset(),
    waits: bool = False,
    overtakes: bool = False,
    lags: bool = False,
) -> tuple[int, list[str]]:
    """Check programs in several processes: one spends most of its time on waiting.

    Args:
        programs: How many.
        seed: Seed of the first one.
        jobs: How many processes.
        keep_going: Whether to go on behind a program that fails.
        left_out: Kinds of calls and operations that they do without.
        waits: Whether they pause, and wait for signals.
        overtakes: Whether inputs overtake the runs that do.
        lags: Whether Flink's thread lags behind the agent loop.

    Returns:
        The number of crashes, and what failed.
    """
    starts = range(seed, seed + programs, SHARE)
    counts = [min(SHARE, seed + programs - start) for start in starts]
    crashes = 0
    failures = list[str]()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        same = map(repeat, (keep_going, left_out, waits, overtakes, lags))
        for done, failed in pool.map(_share, counts, starts, *same):
            crashes += done
            failures += failed
            if failures and not keep_going:
                pool.shutdown(cancel_futures=True)
                break
    return crashes, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.random_programs", description="Random programs with crashes."
    )
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", "--workers", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--keep-going", action="store_true", help="continue after a program that fails")
    parser.add_argument("--without", default="", help="kinds of operations to omit, separated by commas")
    parser.add_argument(
        "--waits", action="store_true", help="with pauses, signals, approvals and delayed events"
    )
    parser.add_argument(
        "--overtake", action="store_true", help="the same, with inputs that overtake suspended runs"
    )
    parser.add_argument("--lag", action="store_true", help="with a slow task thread of Flink")
    options = parser.parse_args(arguments)
    left_out = frozenset(filter(None, options.without.split(",")))
    began = time.perf_counter()
    crashes, failures = run_in_processes(
        options.programs,
        options.seed,
        options.jobs,
        options.keep_going,
        left_out,
        options.waits or options.overtake,
        options.overtake,
        options.lag,
    )
    for failed in failures:
        print(failed, file=sys.stderr)
    took = time.perf_counter() - began
    print(
        f"{options.programs} programs from seed {options.seed}, {crashes} crashes, "
        f"{len(failures)} failed, {took:.1f} s"
    )
    return 1 if failures else 0
