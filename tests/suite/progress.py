"""Shows the progress of a long run, and an estimate of the remaining time; ``scripts/test`` loads it.

The estimate weighs each test by the time of its file in the last run. ``scripts/test`` keeps these times in
pytest's cache. Before the first run, ``seconds.json`` has those of the slow files.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

CACHE = "flink_agents/seconds_of_files"
FAILED = "flink_agents/failed_tests"
SECONDS = Path(__file__).with_name("seconds.json")
"""How long the slow files take on a quiet machine with two cores."""

LINE_EVERY = 15.0
"""Seconds between two lines if nobody watches; a terminal gets one line that changes."""

ERROR_LINES = 8
"""Lines of an error that are shown at once: a run that is cut off shows no tracebacks at its end."""

UNKNOWN = 0.1
"""Seconds that a test counts for if its file is new."""


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def known_seconds(config: pytest.Config) -> dict[str, float]:
    """Return how long files of tests take, as far as it is known."""
    cache: pytest.Cache | None = getattr(config, "cache", None)
    last: dict[str, float] = cache.get(CACHE, {}) if cache is not None else {}
    return {**json.loads(SECONDS.read_text()), **last}


def error_text(traceback: str) -> str:
    """Return the last lines of pytest's text of a failure that belong to its error, and their place."""
    lines = traceback.splitlines()
    errors = [line for line in lines if line.startswith("E ")] or lines
    return "\n".join(f"    {line[:300]}" for line in [*errors[-ERROR_LINES:], *lines[-1:]])


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Estimate:
    """How much of the work is done.

    Args:
        seconds: How long each file took in an earlier run.
    """

    def __init__(self, seconds: dict[str, float]) -> None:
        self._before = seconds
        self._weights: dict[str, float] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.total = 0
        self.done = 0
        self._work = self._worked = 0.0

    def expect(self, nodeids: Iterable[str]) -> None:
        """Take note of the tests that are to run."""
        counts = Counter(map(file_of, nodeids))
        self._weights = {
            file: max(self._before.get(file, UNKNOWN * count), 0.001 * count) / count
            for file, count in counts.items()
        }
        self.total = counts.total()
        self._work = sum(self._weights[file] * count for file, count in counts.items())

    def spent(self, nodeid: str, seconds: float) -> None:
        """Add the seconds of a phase of a test."""
        self.seconds[file_of(nodeid)] += seconds

    def ended(self, nodeid: str) -> None:
        """Count a test that is through."""
        self.done += 1
        self._worked += self._weights.get(file_of(nodeid), UNKNOWN)

    @property
    def share(self) -> float:
        """The share of the work that is done, from 0 to 1."""
        return min(self._worked / self._work, 1.0) if self._work else 0.0

    def seconds_left(self, elapsed: float) -> float | None:
        """Return the seconds that are left after so many seconds, or None if it is too early to say."""
        share = self.share
        return elapsed * (1 - share) / share if share > 0.02 else None


class Progress:
    """Prints the progress in place of a dot per test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._estimate = Estimate(known_seconds(config))
        self._began = self._printed = time.monotonic()
        self._failed: list[str] = []
        self._live = sys.stdout.isatty()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self._estimate.total:
            self._expect([test_id.partition("@")[0] for test_id in ids])

    def _expect(self, nodeids: list[str]) -> None:
        self._estimate.expect(nodeids)
        self._began = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no letter for a test: failures get a line of their own."""
        if hasattr(report, "wasxfail"):
            return None
        if report.when == "call" or not report.passed:
            failed = "failed" if report.when == "call" else "error"
            return failed if report.failed else report.outcome, "", ""
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        nodeid = report.nodeid.partition("@")[0]
        self._estimate.spent(nodeid, report.duration)
        if report.failed:
            self._failed.append(nodeid)
            self._print_line(f"{'FAILED' if report.when == 'call' else 'ERROR'} {nodeid}")
            self._print_line(error_text(report.longreprtext))
        if report.when == "teardown":
            self._estimate.ended(nodeid)
            self._tick()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be imported as failed; each worker imports it."""
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)
            self._print_line(f"ERROR {report.nodeid}")
            self._print_line(error_text(report.longreprtext))

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._printed >= (0.5 if self._live else LINE_EVERY):
            self._printed = now
            self._print_line(self.line(now - self._began), changing=self._live)

    def line(self, elapsed: float) -> str:
        """Return the line for a moment."""
        estimate = self._estimate
        remaining_seconds = estimate.seconds_left(elapsed)
        ahead = "" if remaining_seconds is None else f", about {clock(remaining_seconds)} left"
        failed = f", {len(self._failed)} failed" if self._failed else ""
        done = f"{estimate.share:4.0%}  {estimate.done} of {estimate.total} tests"
        return f"{done}{failed}, {clock(elapsed)}{ahead}"

    def _print_line(self, line: str, changing: bool = False) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        if changing:
            reporter.rewrite(line, erase=True)
        else:
            reporter.ensure_newline()
            reporter.write_line(line)
            # Whoever reads a pipe or a file sees it at once.
            reporter.flush()

    def pytest_sessionfinish(self) -> None:
        """Store which tests failed, and how long each file took for the estimate of the next run."""
        if getattr(self._config, "cache", None):
            self._config.cache.set(FAILED, list(dict.fromkeys(self._failed)))
        if getattr(self._config, "cache", None) and self._estimate.done == self._estimate.total:
            cached_seconds = self._config.cache.get(CACHE, {})
            measured = {file: round(seconds, 3) for file, seconds in self._estimate.seconds.items()}
            self._config.cache.set(CACHE, cached_seconds | measured)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "flink_agents_progress")
