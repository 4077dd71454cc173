"""``kills.json``: the tests that find each mutation."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

KILLS = Path(__file__).parents[1] / "kills.json"


def read_kills(path: Path = KILLS) -> dict[str, list[str]]:
    """Return the tests that find a mutation, one for each test function, by its name."""
    return json.loads(path.read_text()) if path.exists() else {}


def write_kills(kills: Mapping[str, list[str]], path: Path = KILLS) -> None:
    """Write the table, in the order of names. A process that dies here leaves the old table."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(dict(sorted(kills.items())), indent=1) + "\n")
    partial.replace(path)


def enter_kills(name: str, tests: Sequence[str], path: Path = KILLS) -> None:
    """Replace the tests of one mutation; without tests, remove it. Processes take turns."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other_kills = {
            other_name: killers for other_name, killers in read_kills(path).items() if other_name != name
        }
        write_kills(other_kills | ({name: list(tests)} if tests else {}), path)
