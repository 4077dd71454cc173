"""The house is as ``AGENTS.md`` draws it: imports point down, and PyFlink is behind one door."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from flink_agents.api.settings.stores import STORES

ROOT = Path(__file__).parents[1]
LAYERS = {
    "api": set[str](),
    "connectors": {"api", "runtime"},
    "connectors.kafka": {"api", "connectors", "runtime"},
    "models": {"api"},
    "plan": {"api"},
    "trace": {"api"},
    "runtime": {"api", "plan", "trace"},
    "testing": {"api", "plan", "runtime", "connectors"},
    "ui": {"api", "plan", "runtime", "connectors", "connectors.kafka", "trace"},
    "cli": {"api", "plan", "runtime", "connectors", "connectors.kafka", "testing", "trace", "ui"},
}
"""What each part of the package may import; a room with a line of its own is a layer of its own."""

TABLES = {
    "api": "| package of the API |",
    "runtime": "| room |",
    "plan": "| room of the plan |",
    "models": "| room of models |",
    "testing": "| room of the test kit |",
    "cli": "| room of the command line |",
}
"""The tables of rooms in ``AGENTS.md``, by their first column."""

MOST_ROOMS = {"api": 9, "runtime": 10, "plan": 4, "models": 7, "testing": 6, "cli": 5}
MOST_FLOORS = {"api": 9, "runtime": 7, "plan": 8, "models": 8, "testing": 8, "cli": 7}
MOST_MODULES = 12
LARGE_FOLDERS = {"trace": 14, "ui": 14}
"""Folders that have more modules, with their number."""


@cache
def trees() -> dict[Path, ast.Module]:
    """The modules of the package as trees."""
    files = sorted((ROOT / "flink_agents").rglob("*.py"))
    return {file.relative_to(ROOT): ast.parse(file.read_text("utf-8")) for file in files}


@cache
def imports() -> dict[str, set[str]]:
    """The modules of the package, by dotted name, and what each imports."""
    imports_by_module: dict[str, set[str]] = {}
    for file, tree in trees().items():
        parts = file.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        imports_by_module[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                imports_by_module[name] |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                imports_by_module[name] |= {alias.name for alias in node.names}
    return imports_by_module


@cache
def rooms(part: str) -> list[str]:
    """The rooms of a part of the package in the order of its table: from the top down."""
    text = (ROOT / "AGENTS.md").read_text("utf-8")
    table = text[text.index(TABLES[part]) :].split("\n\n", 1)[0]
    return re.findall(r"^\| `(\w+)(?:/|\.py)` \|", table, re.MULTILINE)


def room_of(part: str, name: str) -> str | None:
    """The room that a module is in, if it is one of that part; a module beside the rooms is one."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["flink_agents", part] and len(parts) > 2 else None


@cache
def arrows(part: str) -> dict[str, set[str | None]]:
    """The rooms that each room imports."""
    imported_rooms: dict[str, set[str | None]] = {room: set() for room in rooms(part)}
    for name, imported in imports().items():
        room = room_of(part, name)
        if room is not None:
            imported_rooms[room] |= {
                room_of(part, imported_name) for imported_name in imported
            } & imported_rooms.keys() - {room}
    return imported_rooms


@pytest.mark.parametrize("part", TABLES)
def test_each_folder_is_a_room_of_the_table(part: str) -> None:
    here = ROOT / "flink_agents" / part
    folders = {path.name for path in here.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in here.glob("*.py")} - {"__init__"}
    assert folders | modules == set(rooms(part))
    assert len(folders) <= MOST_ROOMS[part]
    assert part != "runtime" or not modules


@pytest.mark.parametrize(("part", "room"), [(part, room) for part in TABLES for room in rooms(part)])
def test_a_room_imports_only_rooms_below_it(part: str, room: str) -> None:
    below = rooms(part)[rooms(part).index(room) + 1 :]
    assert arrows(part)[room] <= set(below)


@pytest.mark.parametrize("part", TABLES)
def test_the_house_is_not_too_high(part: str) -> None:
    @cache
    def floor(room: str | None) -> int:
        return 1 + max((floor(below) for below in arrows(part)[room or ""]), default=0)

    assert max(map(floor, rooms(part))) <= MOST_FLOORS[part]


def test_a_store_has_its_own_folder_and_imports_no_other() -> None:
    home = "flink_agents.connectors.action_state"
    folders = {path.parent.name for path in (ROOT / home.replace(".", "/")).glob("*/__init__.py")}
    assert folders == set(STORES.built_in)
    for store in folders:
        assert f"{home}.{store}.options" in imports()
        other_prefixes = tuple(f"{home}.{folder}." for folder in folders - {store})
        inside = [name for name in imports() if name.startswith(f"{home}.{store}")]
        assert [
            imported_name
            for name in inside
            for imported_name in imports()[name]
            if imported_name.startswith(other_prefixes)
        ] == []


def layer_of(name: str) -> str | None:
    """The layer that a module, or something in it, is in; what stands beside the layers is in none."""
    if not name.startswith("flink_agents."):
        return None
    inside = f"{name.removeprefix('flink_agents.')}."
    layers = [layer for layer in LAYERS if inside.startswith(f"{layer}.")]
    return max(layers, key=len, default=None)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_layers_below_it(layer: str) -> None:
    allowed = LAYERS[layer] | {layer}
    wrong = [
        (name, imported_name)
        for name, imported in imports().items()
        for imported_name in imported
        if layer_of(name) == layer
        and layer_of(imported_name) is not None
        and layer_of(imported_name) not in allowed
    ]
    assert wrong == []


@cache
def named() -> dict[str, set[str]]:
    """What each module names in strings, as a module or ``module:attribute``: imports by name."""
    names_by_module: dict[str, set[str]] = {name: set() for name in imports()}
    for file, tree in trees().items():
        name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        modules = (
            re.match(r"flink_agents(?:\.\w+)+(?=$|:)", text) for text in texts if isinstance(text, str)
        )
        names_by_module[name] |= {match[0] for match in modules if match}
    return names_by_module


def test_no_layer_names_what_is_above_it() -> None:
    """``built_in``, which stands above all layers, names what the API imports when it is used."""
    wrong = [
        (name, named_module)
        for name, texts in named().items()
        for named_module in texts & imports().keys()
        if layer_of(name) is not None
        and layer_of(named_module) not in {None, *LAYERS[layer_of(name) or ""], layer_of(name)}
    ]
    assert wrong == []


def test_what_belongs_to_no_layer_imports_nothing_of_the_package() -> None:
    """Else a layer would reach others through it."""
    free = {"sqlite_files", "redaction", "kafka_clients", "foreign_imports"}
    imported = {imported_name for name in free for imported_name in imports()[f"flink_agents.{name}"]}
    package_imports = {
        imported_name for imported_name in imported if imported_name.startswith("flink_agents")
    }
    beside = {path.stem for path in (ROOT / "flink_agents").glob("*.py")} - {"__init__", "__main__"}
    assert (package_imports, beside) == (set(), {*free, "built_in"})


def test_nothing_imports_what_stands_above_all_layers() -> None:
    """The names of ``flink_agents`` are the user's; else each import of one would be a circle."""
    above = {"flink_agents", "flink_agents.built_in"}
    imports_by_module = imports()
    importing = {
        name for name in imports_by_module if _modules_of(imports_by_module[name], imports_by_module) & above
    }
    assert importing == {"flink_agents"}


def test_pyflink_is_imported_in_two_rooms() -> None:
    """Only the codec names it besides, inside a function: where a value is a ``Row``."""
    importing = {
        file.relative_to(ROOT / "flink_agents").parts[:2]
        for file in (ROOT / "flink_agents").rglob("*.py")
        if re.search(r"^(?:from|import) pyflink", file.read_text("utf-8"), re.MULTILINE)
    }
    assert importing == {("runtime", "flink"), ("connectors", "kafka")}


def test_a_folder_is_no_store_of_modules() -> None:
    folders = {file.parent for file in (ROOT / "flink_agents").rglob("*.py")}
    modules = {folder.name: len(list(folder.glob("*.py"))) - 1 for folder in folders}
    full = {name for name, count in modules.items() if count > LARGE_FOLDERS.get(name, MOST_MODULES)}
    assert full == set()


@pytest.mark.parametrize(
    "part", ["RunEnvironment", "RunMetrics", "Journals", "LowWatermark", "AgentProcessor", "Heartbeat"]
)
def test_a_subtask_is_built_in_one_place(part: str) -> None:
    """Else the test kit would drift from the operator, and the replay of a run from both."""
    making = [
        file.relative_to("flink_agents").as_posix()
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == part
    ]
    assert making == ["runtime/operator/assembly.py"]


def test_each_import_names_a_module_that_exists() -> None:
    """Imports inside functions too, which nothing runs before their test does."""
    missing = {
        (file.relative_to(ROOT).as_posix(), module_name)
        for part in ("flink_agents", "tests", "examples", "benchmarks")
        for file in (ROOT / part).rglob("*.py")
        if file.is_file()  # a local job keeps a directory with the name of its script
        for module_name in re.findall(
            r"^ *from (flink_agents\.[\w.]+) import", file.read_text("utf-8"), re.MULTILINE
        )
        if module_name not in imports()
    }
    assert missing == set()


def circles() -> set[tuple[str, int]]:
    """Circles of modules; imports inside functions, under ``TYPE_CHECKING`` and by name count."""
    imports_by_module = imports()
    by_name = named()
    arrows = {
        name: (_modules_of(imported, imports_by_module) | by_name[name] & imports_by_module.keys()) - {name}
        for name, imported in imports_by_module.items()
    }
    reached = {name: _reached(name, arrows) for name in arrows}
    circle_sizes: set[tuple[str, int]] = set()
    for name, reached_modules in reached.items():
        circle = sorted(module for module in reached_modules if name in reached[module])
        if len(circle) > 1 and circle[0] == name:
            circle_sizes.add((name.removeprefix("flink_agents."), len(circle)))
    return circle_sizes


def _modules_of(imported: set[str], known: dict[str, set[str]]) -> set[str]:
    return {
        imported_name if imported_name in known else imported_name.rpartition(".")[0]
        for imported_name in imported
    } & known.keys()


def _reached(name: str, arrows: dict[str, set[str]]) -> set[str]:
    reached = set[str]()
    remaining = [name]
    while remaining:
        new = arrows[remaining.pop()] - reached
        reached |= new
        remaining += new
    return reached


def test_no_modules_import_each_other() -> None:
    assert circles() == set()


def test_each_question_about_the_core_has_a_place_that_exists() -> None:
    """Each row of "Where to look" names modules, and what is in one of them."""
    text = (ROOT / "docs" / "design" / "core.md").read_text("utf-8")
    rows = re.findall(r"^\| .*\? \| (.*) \|$", text[text.index("## Where to look") :], re.MULTILINE)
    assert len(rows) >= 10
    missing: list[str] = []
    for row in rows:
        quoted = re.findall(r"`([^`]+)`", row)
        homes = (ROOT / "flink_agents" / "runtime", ROOT / "flink_agents")
        files = [
            home / quoted_name
            for quoted_name in quoted
            if quoted_name.endswith(".py")
            for home in homes
            if (home / quoted_name).exists()
        ]
        code = "".join(file.read_text("utf-8") for file in files)
        missing += quoted[: not files]
        missing += [
            quoted_name
            for quoted_name in quoted
            if quoted_name.endswith(".py") and not any(str(f).endswith(quoted_name) for f in files)
        ]
        missing += [
            part
            for quoted_name in quoted
            if not quoted_name.endswith(".py")
            for part in quoted_name.split(".")
            if part not in code
        ]
    assert missing == []


def test_the_examples_of_extensions_fit_the_code() -> None:
    """Each hunk of ``docs/design/extending.md`` names a file that is there, unless it is a new one."""
    text = (ROOT / "docs" / "design" / "extending.md").read_text("utf-8")
    hunks = re.findall(r"^--- (\S+?)(?:: (\w+).*)?\n((?:[+ ].*\n|\+?\n)+)", text, re.MULTILINE)
    assert len(hunks) >= 9
    missing: list[str] = []
    for path, place, lines in hunks:
        file = ROOT / path
        if not file.exists():
            missing += [path] * any(line.startswith(" ") for line in lines.splitlines())
            continue
        code = file.read_text("utf-8")
        unchanged = [line.strip() for line in lines.splitlines() if line.startswith(" ")]
        missing += [f"{path}: {part}" for part in (place, *unchanged) if part not in code]
    assert missing == []


def test_no_two_classes_share_a_name() -> None:
    """A search for a class finds one; classes of a single module, with an underscore, may repeat a name."""
    places: dict[str, list[str]] = {}
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{file}:{node.lineno}")
    assert {name: locations for name, locations in places.items() if len(locations) > 1} == {}


def test_no_two_test_files_have_one_name() -> None:
    """Pytest imports test files by their bare names, so one process can load only one file of a name."""
    names = Counter(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
