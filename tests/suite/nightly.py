"""``scripts/nightly``: all tests that the daily suite omits, in parts.

    scripts/nightly                # the parts that have not passed with this code yet
    scripts/nightly crash chats    # two parts
    scripts/nightly --list
    scripts/nightly --again        # also the parts that have passed with this code
    scripts/nightly soak --soak-minutes 16

The results are in ``build/nightly``. So you can interrupt the command and start it again: a part that
has passed is not repeated unless the code changed. After each part, the table in
``docs/design/verification.md`` has the last result of every part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.suite.parts import PARTS, Part

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "nightly"
PAGE = ROOT / "docs" / "design" / "verification.md"
TABLE = re.compile(r"(<!-- nightly -->\n).*?(<!-- end -->)", re.DOTALL)

CODE = ("flink_agents", "tests", "benchmarks", "examples", "requirements", "pyproject.toml")
"""What a result depends on."""

SHOWN = (
    *("seed", "events", "runs", "kills", "outputs", "clean", "resumed", "called_again"),
    *("lost", "duplicated", "out_of_order", "repeated_after_record", "wrong"),
    *("given", "written", "dropped", "most_bytes"),
    *("inputs", "new_keys", "doubled", "growing"),
)
"""Values of a report that the table has."""

LONGEST = 3600.0
"""Seconds that a part may take for each of its hours."""


@dataclass(frozen=True)
class Result:
    """The last run of a part.

    Attributes:
        code: The digest of the code that ran.
        passed: True if the command ended with 0.
        seconds: The time that it took.
        figures: What it found, in a line.
        day: The day on which it ran.
    """

    code: str
    passed: bool
    seconds: float
    figures: str
    day: str


def code_digest(root: Path = ROOT) -> str:
    """Return a digest of the code in the working tree."""
    digest = hashlib.blake2b(digest_size=6)
    for question in (("ls-tree", "HEAD", "--", *CODE), ("diff", "HEAD", "--", *CODE)):
        digest.update(subprocess.run(["git", *question], cwd=root, capture_output=True, check=True).stdout)
    return digest.hexdigest()


def figures_of(output: str) -> str:
    """Return the line with the result of a command: the figures of a JSON object, or a closing line."""
    lines = [line for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("{"):
            return "; ".join(_figures(json.loads(line)))
        if re.search(r"\d+ (passed|failed|programs|of \d+ mutations)", line):
            return line.strip("= ")
    return lines[-1][:160] if lines else "no output"


def _figures(found: dict[str, Any]) -> list[str]:
    """Choose from a report: the judged figures of a benchmark, or the plain values of a chaos run."""
    if "targets" in found:
        return [
            f"{target['part']} {target['figure']} {target['measured']:.4g} ({_limit(target)})"
            for target in found["targets"]
        ]
    plain = {name: value for name, value in found.items() if isinstance(value, int | float | str)}
    return [f"{name} {value}" for name, value in plain.items() if name in SHOWN]


def _limit(target: dict[str, Any]) -> str:
    relation = "at_least" if "at_least" in target else "at_most"
    return f"{relation.replace('_', ' ')} {target[relation]:g}"


@dataclass(frozen=True)
class Night:
    """The parts with their results so far.

    Attributes:
        code: The digest of the code that is tested.
        parts: The parts, in their order.
        results: The directory of results and logs.
        page: The page with the table.
    """

    code: str
    parts: Sequence[Part] = PARTS
    results: Path = RESULTS
    page: Path = PAGE

    def run(self, parts: Sequence[Part], again: bool) -> bool:
        """Run parts one after the other; return True if all of them passed with this code."""
        good = True
        for part in parts:
            previous_result = self.last_result(part)
            if (
                previous_result is not None
                and previous_result.passed
                and previous_result.code == self.code
                and not again
            ):
                print(f"{part.name:18} passed on {previous_result.day} with this code", flush=True)
                continue
            print(f"{part.name:18} {part.command}", flush=True)
            result = self.run_part(part)
            self.write_table()
            good = good and result.passed
            state = "passed" if result.passed else f"FAILED, see {self.results / part.name}.log"
            print(f"{part.name:18} {state} after {result.seconds:.0f} s: {result.figures}", flush=True)
        return good

    def run_part(self, part: Part) -> Result:
        """Run a part; keep its output and its result."""
        began = time.monotonic()
        self.results.mkdir(parents=True, exist_ok=True)
        log = self.results / f"{part.name}.log"
        status = run_command(part, log)
        figures = f"ended after {LONGEST * part.hours:.0f} s"
        if status is not None:
            figures = figures_of(log.read_text(errors="replace"))
        seconds = round(time.monotonic() - began, 1)
        result = Result(self.code, status == 0, seconds, figures, datetime.now(UTC).strftime("%Y-%m-%d"))
        (self.results / f"{part.name}.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
        return result

    def last_result(self, part: Part) -> Result | None:
        """Return the last result of a part, or None if it never ran here."""
        result_file = self.results / f"{part.name}.json"
        return Result(**json.loads(result_file.read_text())) if result_file.exists() else None

    def write_table(self) -> None:
        """Write a line per part into the page. A part that never ran here keeps the line that it has."""
        text = self.page.read_text()
        match = TABLE.search(text)
        if match is None:
            raise ValueError(f"{self.page} has no place for the table: {TABLE.pattern}")
        rows = {row.split("|")[1].strip(" `"): row for row in match[0].splitlines() if row.startswith("| `")}
        lines = ["| part | what it shows | last result | minutes | day |", "|---|---|---|---|---|"]
        for part in self.parts:
            result = self.last_result(part)
            if result is None:
                lines.append(rows.get(part.name, f"| `{part.name}` | {part.shows} | | | |"))
                continue
            figures = ("" if result.passed else "**failed**: ") + result.figures.replace("|", "/")
            minutes = f"{result.seconds / 60:.1f}"
            lines.append(f"| `{part.name}` | {part.shows} | {figures} | {minutes} | {result.day} |")
        self.page.write_text(
            TABLE.sub(lambda table_match: table_match[1] + "\n".join(lines) + "\n" + table_match[2], text)
        )


def run_command(part: Part, log: Path) -> int | None:
    """Run the command of a part; return its exit status, or None if it took too long."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | dict(part.environment)
    with log.open("w") as output:
        command = [sys.executable, *part.arguments]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            return process.wait(LONGEST * part.hours)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.terminate()
            process.wait()


def main(arguments: Sequence[str] | None = None, night: Night | None = None) -> int:
    """Run the command; return its exit status."""
    night = night or Night(code_digest())
    parser = argparse.ArgumentParser(
        prog="scripts/nightly",
        description="Run what the daily suite leaves out, in parts of at most an hour, and a soak.",
    )
    names = [part.name for part in night.parts]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--list", action="store_true", help="show the parts and their commands")
    parser.add_argument("--again", action="store_true", help="repeat parts that have passed with this code")
    parser.add_argument("--soak-minutes", type=float, metavar="N", help="time of the soak (120)")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts).difference(names)):
        parser.error(f"no such part: {', '.join(unknown)}")
    parts = [part.in_minutes(options.soak_minutes) for part in night.parts]
    chosen = [part for part in parts if not options.parts or part.name in options.parts]
    if options.list:
        for part in chosen:
            print(f"{part.name:18} {part.command}")
        return 0
    return 0 if night.run(chosen, options.again) else 1


if __name__ == "__main__":
    sys.exit(main())
