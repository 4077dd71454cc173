"""A pytest plugin that runs mutations in place of the collected tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from tests.mutations.suite.kills import enter_kills, read_kills
from tests.mutations.suite.options import Options, read_options
from tests.mutations.suite.processes import in_processes
from tests.mutations.suite.reach import ROOT, Reach, record, recording_of
from tests.mutations.suite.search import Defect, Found, Search, function_id

FOUND = ROOT / "build" / "mutations" / "found"
"""What was found about each mutation, so that a run can resume."""

Say = Callable[[str], None]


def defects() -> dict[str, Defect]:
    """Return all mutations by name, but for those that random conversations find."""
    from tests.mutations import models as models, overtake as overtake, table as table, waits as waits
    from tests.mutations.mutation import TABLE
    from tests.mutations.patches import (
        edges as edges,
        journal as journal,
        loop as loop,
        operator as operator,
        outside as outside,
        resume as resume,
        retention as retention,
        state as state,
    )
    from tests.mutations.patches.patch import PATCHES

    return {name: defect for name, defect in TABLE.items() if not defect.chats} | PATCHES


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Record what is missing, and look for what finds each mutation."""
    if session.testsfailed:
        raise session.Interrupted(f"{session.testsfailed} files of tests cannot be imported")
    options = read_options()
    say = printer(session.config)
    by_file: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    reach = recorded(by_file, options.jobs, say)
    search = Search({item.nodeid: item for item in session.items}, reach, options.enough, options.budget)
    if not judged(search, options, say):
        session.testsfailed = 1
    return True


def recorded(by_file: dict[str, list[pytest.Item]], jobs: int, say: Say) -> Reach:
    """Return what the tests reach; record files of tests that are new or have changed."""

    def make(file: str) -> None:
        recording = record(file, by_file[file])
        say(f"recorded {file}: {len(recording.tests)} tests, {sum(recording.tests.values()):.1f} s")

    in_processes([file for file in by_file if recording_of(file) is None], jobs, make)
    recordings = [file_recording for file in by_file if (file_recording := recording_of(file)) is not None]
    for recording in recordings:
        for nodeid in recording.broken:
            say(f"fails without any mutation, and is left out: {nodeid}")
    return Reach(recordings)


def judged(search: Search, options: Options, say: Say) -> bool:
    """Try the mutations, and write the table; return True if all are found."""
    table, recorded_kills = defects(), read_kills()
    named: Sequence[str] = options.names or list(table)

    def find(name: str) -> None:
        listed = recorded_kills.get(name, [])
        result = search.find(table[name], listed) if listed and (options.check or options.resume) else None
        if result is None or not result.passed:
            result = search.find(table[name])
        # Each result is kept at once: a run that is killed resumes with the next mutation.
        keep_findings(result)
        if not options.check and (result.passed or not options.tests):
            enter_kills(name, result.killers if result.passed else [])
        say(str(result))

    FOUND.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        for name in named:
            (FOUND / f"{name}.json").unlink(missing_ok=True)
    if not options.check:
        for name in recorded_kills.keys() - table.keys():
            enter_kills(name, [])
    open_ones = [name for name in named if not settled(table[name], search)]
    # Those that nothing is known of come first.
    in_processes(sorted(open_ones, key=lambda name: name in recorded_kills), options.jobs, find)
    earlier_results = [earlier_result for name in named if (earlier_result := found_before(name)) is not None]
    kills = {result.name: result.killers for result in earlier_results if result.passed}
    functions = {function_id(test) for tests in kills.values() for test in tests}
    say(f"{len(kills)} of {len(named)} mutations found by {len(functions)} test functions")
    unlisted = [name for name in named if options.check and name not in recorded_kills]
    for name in unlisted:
        say(f"{name} is not in kills.json: run `python -m tests.mutations --suite {name}`")
    return len(kills) == len(named) and not unlisted


def settled(defect: Defect, search: Search) -> bool:
    """Return True if a mutation was tried before, and if no more tests reach it than at that time."""
    previous_result = found_before(defect.name)
    return previous_result is not None and (
        previous_result.passed or previous_result.reached >= search.reached(defect)
    )


def keep_findings(found: Found) -> None:
    """Keep what was found about a mutation."""
    partial = FOUND / f"{found.name}.partial"
    partial.write_text(json.dumps(asdict(found)))
    partial.replace(FOUND / f"{found.name}.json")


def found_before(name: str) -> Found | None:
    """Return what was found about a mutation, or None."""
    path = FOUND / f"{name}.json"
    return Found(**json.loads(path.read_text())) if path.exists() else None


def printer(config: pytest.Config) -> Say:
    """Return a function that prints a line, whatever pytest captures."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(line, flush=True)

    return say
