"""Runs tests in forked processes, after all imports, so that no test affects another one."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

LONGEST = 60.0
"""Seconds after which a test counts as hanging."""


@dataclass(frozen=True)
class Outcome:
    """What became of a test.

    Attributes:
        at: The position of the test among those that were to run.
        outcome: ``passed``, ``failed``, ``skipped`` or ``hung``.
        seconds: Seconds of CPU that it took, with its processes.
        text: The last line of a failure.
    """

    at: int
    outcome: str
    seconds: float
    text: str = ""

    @property
    def failed(self) -> bool:
        """True if the test failed or had to be ended."""
        return self.outcome in ("failed", "hung")


class Reports:
    """A plugin that keeps the reports of the current test."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    def read_outcome(self) -> tuple[str, str]:
        """Return the outcome of the reports, and the last line of a failure."""
        reports = self.reports
        self.reports = []
        for report in reports:
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                text = str(getattr(crash, "message", report.longrepr)).strip()
                return "failed", (text.splitlines() or [""])[0][:200]
        skipped = any(report.skipped for report in reports)
        return ("skipped" if skipped else "passed"), ""


def run_forked(
    items: Sequence[pytest.Item],
    prepare: Callable[[], None] = lambda: None,
    around: Callable[[pytest.Item], Any] | None = None,
    finish: Callable[[], None] = lambda: None,
    longest: float = LONGEST,
) -> Generator[Outcome]:
    """Run tests in a forked process, and yield each outcome as soon as it is there.

    If you close the iterator, the process ends. A test that takes too long ends the process and the run.

    Args:
        items: The tests.
        prepare: Runs in the process first.
        around: Called in the process before each test.
        finish: Runs in the process last.
        longest: Seconds that a test may take.

    Raises:
        RuntimeError: ``prepare`` failed.
    """
    receive, send = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os.close(receive)
        _child(items, send, prepare, around, finish)
    os.close(send)
    try:
        yield from _outcomes(receive, longest)
    finally:
        _end(process)
        os.close(receive)


def _end(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def _outcomes(receive: int, longest: float) -> Generator[Outcome]:
    running = -1
    for line in _lines(receive, longest):
        if line is None:
            yield Outcome(max(running, 0), "hung", longest, f"no end after {longest:.0f} s")
            return
        message = json.loads(line)
        if "broken" in message:
            raise RuntimeError(message["broken"])
        if "starts" in message:
            running = message["starts"]
        else:
            yield Outcome(**message)
            running = -1
    if running >= 0:
        yield Outcome(running, "failed", 0.0, "the process ended")


def _lines(receive: int, longest: float) -> Iterator[bytes | None]:
    """Yield lines of a pipe, or None if one takes too long."""
    partial_line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(receive, selectors.EVENT_READ)
        while True:
            if not selector.select(longest):
                yield None
                return
            chunk = os.read(receive, 1 << 16)
            if not chunk:
                return
            *lines, partial_line = (partial_line + chunk).split(b"\n")
            yield from lines


def _child(
    items: Sequence[pytest.Item],
    send: int,
    prepare: Callable[[], None],
    around: Callable[[pytest.Item], Any] | None,
    finish: Callable[[], None],
) -> None:
    """Run the tests and end the process."""

    def tell(**told: object) -> None:
        os.write(send, json.dumps(told).encode() + b"\n")

    try:
        os.setpgrp()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        prepare()
        if items:
            reports = Reports()
            plugins = items[0].config.pluginmanager
            plugins.register(reports)
            plugins.unregister(name="terminalreporter")
            for at, item in enumerate(items):
                tell(starts=at)
                if around is not None:
                    around(item)
                began = sum(os.times()[:4])
                following = items[at + 1] if at + 1 < len(items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                outcome, text = reports.read_outcome()
                tell(at=at, outcome=outcome, seconds=round(sum(os.times()[:4]) - began, 3), text=text)
        finish()
    except BaseException as error:
        tell(broken=f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)
