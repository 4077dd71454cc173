"""The lines that each test executes, recorded once per test file in ``build/mutations/reach``.

Lines are kept by function. If other functions of a module change, the recorded lines are still valid. If the
function itself changed, every test that reached any of its lines counts.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import coverage
import pytest

from tests.mutations.patches.patch import functions_of
from tests.mutations.suite.forked import run_forked

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "build" / "mutations" / "reach"


def digest_of(text: str) -> str:
    """Return a short digest."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Reached:
    """Which tests of a file reach a function.

    Attributes:
        digest: Of the function's source.
        lines: For a line, counted from the ``def``, a set of tests: the bits of a hexadecimal number.
    """

    digest: str
    lines: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """What was recorded of one file of tests.

    Attributes:
        digest: Of the file.
        tests: The ids of its tests that passed, with their seconds.
        broken: The ids of those that failed.
        functions: What they reached, by ``path:function``.
    """

    digest: str
    tests: dict[str, float]
    broken: list[str]
    functions: dict[str, Reached]

    def write(self, path: Path) -> None:
        """Keep it in a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Recording | None:
        """Return what a file has, or None if there is no such file."""
        if not path.exists():
            return None
        fields = json.loads(path.read_text())
        functions = {
            name: Reached(
                function_fields["digest"],
                {int(line): bits for line, bits in function_fields["lines"].items()},
            )
            for name, function_fields in fields.pop("functions").items()
        }
        return cls(**fields, functions=functions)


def source_of(path: str, function: str) -> tuple[str, range] | None:
    """Return the source of a function of a file below the root, and its lines."""
    file = ROOT / path
    source = file.read_text() if file.exists() else ""
    lines = functions_of(source).get(function)
    if lines is None:
        return None
    return "\n".join(source.split("\n")[lines[0] - 1 : lines[1]]), range(lines[0], lines[1] + 1)


def recording_of(file: str) -> Recording | None:
    """Return what was recorded of a file of tests, or None if the file has changed since."""
    recording = Recording.read(KEPT / f"{file.replace('/', '.')}.json")
    return (
        recording
        if recording is not None and recording.digest == digest_of((ROOT / file).read_text())
        else None
    )


def record(file: str, items: Sequence[pytest.Item]) -> Recording:
    """Run the tests of a file under coverage, and keep what they reach."""
    data = KEPT / f"{file.replace('/', '.')}.data"
    data.parent.mkdir(parents=True, exist_ok=True)
    tracing = coverage.Coverage(
        data_file=str(data), source=[str(ROOT / "flink_agents")], config_file=False, messages=False
    )

    def finish() -> None:
        tracing.stop()
        tracing.save()

    passed: dict[str, float] = {}
    broken: list[str] = []
    for outcome in run_forked(
        items, tracing.start, lambda item: tracing.switch_context(item.nodeid), finish, longest=300.0
    ):
        nodeid = items[outcome.at].nodeid
        if outcome.outcome == "passed":
            passed[nodeid] = outcome.seconds
        elif outcome.failed:
            broken.append(nodeid)
    functions = _functions(data, list(passed))
    data.unlink(missing_ok=True)
    recording = Recording(digest_of((ROOT / file).read_text()), passed, broken, functions)
    recording.write(KEPT / f"{file.replace('/', '.')}.json")
    return recording


def _functions(data: Path, tests: list[str]) -> dict[str, Reached]:
    """Return the functions that tests reached, out of the data of coverage."""
    if not data.exists():
        return {}
    coverage_data = coverage.CoverageData(str(data))
    coverage_data.read()
    numbers = {nodeid: 1 << at for at, nodeid in enumerate(tests)}
    reached: dict[str, Reached] = {}
    for name in coverage_data.measured_files():
        path = Path(name).relative_to(ROOT).as_posix()
        contexts = coverage_data.contexts_by_lineno(name)
        for function in functions_of(Path(name).read_text()):
            text, lines = source_of(path, function) or ("", range(0))
            bits = {
                line - lines.start: sum(numbers.get(nodeid, 0) for nodeid in contexts.get(line, ()))
                for line in lines
            }
            reached_lines = {line: f"{tests_of:x}" for line, tests_of in bits.items() if tests_of}
            if reached_lines:
                reached[f"{path}:{function}"] = Reached(digest_of(text), reached_lines)
    return reached


class Reach:
    """All recordings, by function.

    Args:
        recordings: What was recorded, by file of tests.
    """

    def __init__(self, recordings: Iterable[Recording]) -> None:
        self._functions: dict[str, list[tuple[Reached, list[str]]]] = defaultdict(list)
        self.seconds: dict[str, float] = {}
        for recording in recordings:
            self.seconds |= recording.tests
            for name, reached in recording.functions.items():
                self._functions[name].append((reached, list(recording.tests)))

    def tests(self, path: str, function: str, lines: range | None = None) -> list[str]:
        """Return the ids of the tests that reach a function, or some of its lines.

        Args:
            path: The file of the function, below the root.
            function: Its qualified name.
            lines: The lines; all lines of the function by default.
        """
        text, function_lines = source_of(path, function) or ("", range(0))
        digest = digest_of(text)
        reaching_tests: list[str] = []
        for reached, tests in self._functions[f"{path}:{function}"]:
            same = lines is not None and reached.digest == digest
            wanted = {line - function_lines.start for line in lines or ()} if same else set(reached.lines)
            bits = 0
            for line in wanted & set(reached.lines):
                bits |= int(reached.lines[line], 16)
            reaching_tests += [nodeid for at, nodeid in enumerate(tests) if bits >> at & 1]
        return reaching_tests
