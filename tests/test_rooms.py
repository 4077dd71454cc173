"""The house is as ``AGENTS.md`` draws it: imports point down, and PyFlink is behind one door."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {
    "api": set[str](),
    "connectors": {"api"},
    "plan": {"api"},
    "runtime": {"api", "plan", "connectors"},
    "testing": {"api", "plan", "runtime", "connectors"},
    "cli": {"api", "plan", "runtime", "connectors", "testing"},
}
"""What each part of the package may import."""

MOST_ROOMS = 12
MOST_FLOORS = 8
MOST_MODULES = 14


@cache
def imports() -> dict[str, set[str]]:
    """The modules of the package, by dotted name, and what each imports."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "flink_agents").rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = set()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                found[name] |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
    return found


def rooms() -> list[str]:
    """The rooms of ``runtime`` in the order of the table: from the top down."""
    text = (ROOT / "AGENTS.md").read_text("utf-8")
    table = text[text.index("| room |") :].split("\n\n", 1)[0]
    return re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)


def room_of(name: str) -> str | None:
    """The room that a module is in, if it is one of ``runtime``."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["flink_agents", "runtime"] and len(parts) > 2 else None


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = {room: set() for room in rooms()}
    for name, imported in imports().items():
        room = room_of(name)
        if room is not None:
            found[room] |= {other for one in imported if (other := room_of(one)) not in (None, room)}  # type: ignore[misc]
    return found


def test_each_folder_is_a_room_of_the_table() -> None:
    runtime = ROOT / "flink_agents" / "runtime"
    folders = {path.name for path in runtime.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(rooms())
    assert [path.name for path in runtime.glob("*.py")] == ["__init__.py"]
    assert len(folders) <= MOST_ROOMS


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    below = rooms()[rooms().index(room) + 1 :]
    assert arrows()[room] <= set(below)


def test_the_house_is_not_too_high() -> None:
    @cache
    def floor(room: str) -> int:
        return 1 + max((floor(below) for below in arrows()[room]), default=0)

    assert max(map(floor, rooms())) <= MOST_FLOORS


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_layers_below_it(layer: str) -> None:
    allowed = LAYERS[layer] | {layer}
    wrong = [
        (name, one)
        for name, imported in imports().items()
        for one in imported
        if name.split(".")[1:2] == [layer]
        and one.startswith("flink_agents.")
        and (ROOT / "flink_agents" / one.split(".")[1]).is_dir()
        and one.split(".")[1] not in allowed
    ]
    assert wrong == []


def test_pyflink_is_imported_in_one_room() -> None:
    """Only the codec names it besides, inside a function: where a value is a ``Row``."""
    importing = {
        file.relative_to(ROOT / "flink_agents").parts[:2]
        for file in (ROOT / "flink_agents").rglob("*.py")
        if re.search(r"^(?:from|import) pyflink", file.read_text("utf-8"), re.MULTILINE)
    }
    assert importing == {("runtime", "flink")}


def test_a_folder_is_no_store_of_modules() -> None:
    folders = {file.parent for file in (ROOT / "flink_agents" / "runtime").rglob("*.py")}
    full = {folder.name for folder in folders if len(list(folder.glob("*.py"))) - 1 > MOST_MODULES}
    assert full == set()
