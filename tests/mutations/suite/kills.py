"""``kills.json``: which tests find which mutation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

KILLS = Path(__file__).parents[1] / "kills.json"


def read_kills(path: Path = KILLS) -> dict[str, list[str]]:
    """Return the tests that find a mutation, one for each test function, by its name."""
    return json.loads(path.read_text()) if path.exists() else {}


def write_kills(kills: Mapping[str, list[str]], path: Path = KILLS) -> None:
    """Write the table, in the order of names."""
    path.write_text(json.dumps(dict(sorted(kills.items())), indent=1) + "\n")
