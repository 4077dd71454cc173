"""``python -m tests.mutations``: each mutation in a new process, until a program fails."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.mutations import models as models, overtake as overtake, table as table, waits as waits
from tests.mutations.mutation import TABLE
from tests.random_programs.running import first_failure

NOTHING = "nothing"
"""Name of the run without a mutation: in it, no program may fail."""

SETTLE_SECONDS = 5.0
"""How long a program of a mutation may stand still."""


@dataclass(frozen=True)
class Finding:
    """What became of a mutation.

    Attributes:
        name: Its name.
        found: Which program found it, and in a line what differed; None where none did.
        programs: How many programs ran.
        seconds: How long it took.
        broken: Why it could not be applied, or None.
    """

    name: str
    found: str | None
    programs: int
    seconds: float
    broken: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it came to what it should."""
        return (self.found is None) == (self.name == NOTHING) and self.broken is None

    def __str__(self) -> str:
        summary = self.broken or self.found or "nothing found"
        mark = "ok  " if self.passed else "FAIL"
        return f"{mark} {self.name:32} {self.programs:5} {self.seconds:6.1f} s  {summary}"


def try_mutation(name: str, programs: int, seed: int, left_out: frozenset[str]) -> Finding:
    """Run programs with a mutation until one fails. Called in a process of its own."""
    began = time.monotonic()
    if name != NOTHING:
        try:
            TABLE[name].apply()
        except (AttributeError, KeyError, ImportError) as error:
            return Finding(name, None, 0, 0.0, f"there is no {TABLE[name].target} any more: {error!r}")
    if name != NOTHING and TABLE[name].chats:
        from tests import random_chats

        failure = random_chats.first_failure(programs, seed)
    else:
        overtakes = name != NOTHING and TABLE[name].overtakes
        waiting = overtakes or (name != NOTHING and TABLE[name].waits)
        failure = first_failure(programs, seed, SETTLE_SECONDS, left_out, waiting, overtakes)
    seconds = time.monotonic() - began
    if failure is None:
        return Finding(name, None, programs, seconds)
    at, failed = failure
    error_line = f"{type(failed.__cause__).__name__}: {failed.__cause__}".splitlines()[0]
    return Finding(name, f"program {at}: {error_line[:120]}", at - seed + 1, seconds)


def try_all(
    names: Sequence[str], programs: int, seed: int, jobs: int, left_out: frozenset[str] = frozenset()
) -> list[Finding]:
    """Try mutations, each in a new process."""
    context = multiprocessing.get_context("spawn")
    # A process for each: what one has changed, no other may see.
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        tried = [pool.submit(try_mutation, name, programs, seed, left_out) for name in names]
        return [future.result() for future in tried]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations", description="Puts defects back, and sees that programs find them."
    )
    parser.add_argument("names", nargs="*", help="names of mutations; all by default")
    parser.add_argument("--programs", type=int, default=300, help="the most programs for each mutation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--without", default="", help="kinds of operations to omit, separated by commas")
    suite = parser.add_argument_group("the tests of the suite in place of programs")
    suite.add_argument("--suite", action="store_true", help="run the tests that reach a mutation")
    suite.add_argument("--check", action="store_true", help="run the tests that kills.json names first")
    suite.add_argument("--resume", action="store_true", help="skip mutations that were tried before")
    suite.add_argument("--enough", type=int, default=3, help="test functions after which a search ends")
    suite.add_argument("--budget", type=float, default=120.0, help="the most seconds for a mutation")
    suite.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="only these tests")
    options = parser.parse_args(arguments)
    if options.suite:
        from tests.mutations.suite import command

        return command.run(options)
    names = options.names or [NOTHING, *TABLE]
    left_out = frozenset(filter(None, options.without.split(",")))
    findings = try_all(names, options.programs, options.seed, options.jobs, left_out)
    for finding in findings:
        print(finding)
    return 0 if all(finding.passed for finding in findings) else 1
