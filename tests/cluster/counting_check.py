"""The expected output of the counting job, compared with the committed one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.counting_job import extended_digest


@dataclass(frozen=True)
class Verdict:
    """Differences from the model; each list has the offending lines or numbers.

    Attributes:
        records: Number of lines.
        lost: Numbers that never came.
        duplicated: Lines of a number that had come before.
        out_of_order: Lines behind a line of the same key with a greater number.
        wrong: Lines whose counters or digest are not those of the model, or that nobody knows.
    """

    records: int
    lost: Sequence[int]
    duplicated: Sequence[str]
    out_of_order: Sequence[str]
    wrong: Sequence[str]

    @property
    def clean(self) -> bool:
        """Whether there is no difference."""
        return not (self.lost or self.duplicated or self.out_of_order or self.wrong)

    def __str__(self) -> str:
        parts = [f"{self.records} records"]
        for name in ("lost", "duplicated", "out_of_order", "wrong"):
            problems = getattr(self, name)
            parts.append(f"{len(problems)} {name}" + (f", such as {list(problems[:5])}" if problems else ""))
        return "; ".join(parts)


def expected_lines(records: int, keys: int) -> dict[int, str]:
    """The line of each number."""
    lines: dict[int, str] = {}
    for key in range(keys):
        digest = 0
        for place, number in enumerate(range(key, records, keys), 1):
            digest = extended_digest(digest, number)
            lines[number] = f"{key} {number} {place} {place} {digest}"
    return lines


def judge(lines: Iterable[str], records: int, keys: int) -> Verdict:
    """Compare ``lines``, in the order in which they were written, with the model."""
    expected = expected_lines(records, keys)
    seen: set[int] = set()
    greatest: dict[str, int] = defaultdict(lambda: -1)
    duplicated: list[str] = []
    out_of_order: list[str] = []
    wrong: list[str] = []
    lines = list(lines)
    for line in lines:
        key, number_text, *_ = line.split()
        number = int(number_text)
        if number in seen:
            duplicated.append(line)
        elif number < greatest[key]:
            out_of_order.append(line)
        if expected.get(number) != line:
            wrong.append(f"{line!r} instead of {expected.get(number)!r}")
        seen.add(number)
        greatest[key] = max(greatest[key], number)
    return Verdict(len(lines), sorted(expected.keys() - seen), duplicated, out_of_order, wrong)


class CommittedOutput:
    """Files that a FileSink has committed; each is read once.

    Args:
        directory: The sink's directory, which need not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[Path, tuple[int, list[str]]] = {}

    def count(self) -> int:
        """Number of lines so far."""
        # Files that are being written begin with a dot.
        for path in self._directory.glob("part-*"):
            if path not in self._files:
                lines = path.read_text(encoding="utf-8").splitlines()
                self._files[path] = (path.stat().st_mtime_ns, lines)
        return sum(len(lines) for _, lines in self._files.values())

    def lines(self) -> list[str]:
        """All lines; those of one writer, and so those of one key, in the order of writing."""
        self.count()
        # Names do not follow that order: a writer gets another one when it is restored.
        files = sorted(self._files.items(), key=lambda item: (item[1][0], item[0]))
        return [line for _, (_, lines) in files for line in lines]
