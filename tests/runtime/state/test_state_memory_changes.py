"""What memory writes to state, how entries expire, and memory as a tree over a map."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from core_agents import probe

from flink_agents import MemoryScope
from flink_agents.api.errors import MemoryPathError
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head, KeyedState, write_nodes
from flink_agents.runtime.state.memory import MemoryTree, TreeObject
from tests.suite.tables import each_case


class CountingMap:
    """A map in state that records what is read and written."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.log: list[str] = []

    def get(self, key: str) -> bytes | None:
        self.log.append(f"get {key}")
        return self.entries.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.log.append(f"put {key}")
        self.entries[key] = value

    def remove(self, key: str) -> None:
        self.log.append(f"remove {key}")
        del self.entries[key]

    def clear(self) -> None:
        raise AssertionError("memory is never cleared as a whole")

    def items(self) -> list[tuple[str, bytes]]:
        self.log.append("items")
        return list(self.entries.items())


def run_on(state: CountingMap, body: Any) -> list[str]:
    """What one run that calls ``body(memory)`` does to ``state``."""
    state.log.clear()
    tree = MemoryTree(MemoryScope.SHORT_TERM, ValueCodec(), state, [])
    body(TreeObject(tree, "", lambda: None))
    write_nodes(state, tree.changes())
    return state.log


@pytest.fixture
def state() -> CountingMap:
    filled = CountingMap()
    run_on(filled, lambda memory: (memory.set("a", 1), memory.set("o.x", 2), memory.set("o.y", 3)))
    return filled


COSTS: dict[str, tuple[Any, list[str]]] = {
    "nothing": (lambda memory: None, []),
    "read": (lambda memory: memory.get("a"), ["get a"]),
    "read twice": (lambda memory: (memory.get("a"), memory.get("a")), ["get a"]),
    "read what is missing": (lambda memory: (memory.get("z"), memory.get("z")), ["get z"]),
    "write": (lambda memory: memory.set("a", 2), ["get a", "put a"]),
    "count": (lambda memory: memory.set("a", memory.get("a") + 1), ["get a", "put a"]),
    "write the value that is there": (lambda memory: memory.set("a", 1), ["get a"]),
    "write and write back": (lambda memory: (memory.set("a", 2), memory.set("a", 1)), ["get a"]),
    "write often": (lambda memory: [memory.set("a", n) for n in range(9)], ["get a", "put a"]),
    "write a field": (lambda memory: memory.set("o.x", 7), ["get o", "get o.x", "put o.x"]),
    "new field": (lambda memory: memory.set("o.z", 7), ["get o", "get o.z", "put o.z"]),
    "new object": (lambda memory: memory.set("n.x", 7), ["get n", "get n.x", "put n.x", "put n"]),
    "delete": (lambda memory: memory.delete("a"), ["get a", "remove a"]),
    "delete what is missing": (lambda memory: memory.delete("z"), ["get z"]),
    "write and delete": (lambda memory: (memory.set("z", 1), memory.delete("z")), ["get z"]),
    "delete and write back": (lambda memory: (memory.delete("a"), memory.set("a", 1)), ["get a"]),
    "delete an object": (
        lambda memory: memory.delete("o"),
        ["get o", "items", "remove o", "remove o.y", "remove o.x"],
    ),
    "names": (lambda memory: (memory.field_names(), memory.fields()), ["items"]),
    "missing after all is read": (lambda memory: (memory.field_names(), memory.get("z")), ["items"]),
    "object that is there": (lambda memory: memory.new_object("o"), ["get o"]),
}


@pytest.mark.parametrize(("body", "expected"), COSTS.values(), ids=COSTS.keys())
def test_state_is_touched_no_more_than_needed(state: CountingMap, body: Any, expected: list[str]) -> None:
    assert run_on(state, body) == expected


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Paths that runs in the harness write to memory state."""
    written_paths: list[str] = []
    write_memory = KeyedState.write_memory

    def counting(self: KeyedState, head: Head, changes: dict[str, bytes | None]) -> None:
        written_paths.extend(changes)
        write_memory(self, head, changes)

    monkeypatch.setattr(KeyedState, "write_memory", counting)
    yield written_paths


@pytest.mark.executes_once
def test_a_run_writes_what_changed_and_only_once(writes: list[str]) -> None:
    def body(record: int, ctx: Any) -> None:
        memory = ctx.short_term_memory
        memory.set("same", "same")
        memory.set("count", record)
        memory.set("count", record + 1)
        ctx.sensory_memory.set("other", record)

    harness = probe(body)
    harness.push_all([1, 2, 2, 3])
    assert sorted(writes) == ["count", "count", "count", "same"]


# -- as a model says -----------------------------------------------------------------


@each_case("seed", range(40))
def test_random_operations_do_what_a_dict_does(seed: int) -> None:
    """Runs over state agree with one nested dict, whatever is committed or taken back between."""
    generator = random.Random(seed)
    state = CountingMap()
    model = {}
    paths = [".".join(generator.choices("abc", k=generator.randint(1, 3))) for _ in range(12)]
    for _ in range(12):
        undo: Any = []
        tree = MemoryTree(MemoryScope.SHORT_TERM, ValueCodec(), state, undo)
        memory = TreeObject(tree, "", lambda: None)
        draft = dict(model)
        for _ in range(generator.randrange(6)):
            path = generator.choice(paths)
            value = generator.randrange(5)
            if generator.random() < 0.3:
                assert memory.delete(path) == _delete(draft, path)
            elif _can_set(draft, path):
                memory.set(path, value)
                _set(draft, path, value)
            else:
                with pytest.raises(MemoryPathError):
                    memory.set(path, value)
        assert _plain(memory) == {path: value for path, value in draft.items() if value is not OBJECT}
        if generator.random() < 0.7:
            write_nodes(state, tree.changes())
            model = draft
    fresh = MemoryTree(MemoryScope.SHORT_TERM, ValueCodec(), state, [])
    assert _plain(TreeObject(fresh, "", lambda: None)) == {p: v for p, v in model.items() if v is not OBJECT}


OBJECT = object()


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _can_set(model: dict[str, Any], path: str) -> bool:
    through = all(model.get(parent, OBJECT) is OBJECT for parent in _parents(path))
    return through and model.get(path) is not OBJECT


def _set(model: dict[str, Any], path: str, value: Any) -> None:
    model.update(dict.fromkeys(_parents(path), OBJECT))
    model[path] = value


def _delete(model: dict[str, Any], path: str) -> bool:
    removed_paths = [
        model_path for model_path in model if model_path == path or model_path.startswith(path + ".")
    ]
    for removed_path in removed_paths:
        del model[removed_path]
    return bool(removed_paths)


def _plain(memory: Any, prefix: str = "") -> dict[str, Any]:
    plain_values: dict[str, Any] = {}
    for name, value in memory.fields().items():
        plain_values.update(
            _plain(value, f"{prefix}{name}.") if isinstance(value, TreeObject) else {prefix + name: value}
        )
    return plain_values


# -- entries that expire -------------------------------------------------------------

HOUR = {"memory.short-term.ttl": "1 h"}


def remember(record: Any, ctx: Any) -> Any:
    """Stores the record under the path that it names, and tells all that is there."""
    memory = ctx.short_term_memory
    if record is not None:
        memory.set(record, True)
    return [name for name, value in sorted(_plain(memory).items()) if value]


def test_entry_is_forgotten_after_its_time() -> None:
    harness = probe(remember, config=HOUR)
    harness.push("a")
    harness.advance_time(timedelta(minutes=59))
    assert harness.push("b") == [["a", "b"]]
    harness.advance_time(timedelta(minutes=1))
    assert harness.push(None) == [["b"]]
    assert harness.memory() == {"b": True}
    harness.advance_time(timedelta(hours=1))
    assert harness.push(None) == [[]]


def test_reading_does_not_prolong_and_writing_does() -> None:
    harness = probe(remember, config=HOUR)
    harness.push_all(["read", "written"])
    harness.advance_time(timedelta(minutes=40))
    harness.push("written")
    harness.advance_time(timedelta(minutes=40))
    assert harness.push(None) == [["written"]]


def test_fields_live_longer_than_the_object_that_was_written_before() -> None:
    harness = probe(remember, config=HOUR)
    harness.push("o.a")
    harness.advance_time(timedelta(minutes=40))
    harness.push("o.b")
    harness.advance_time(timedelta(minutes=40))
    assert harness.push(None) == [["o.b"]]
    harness.advance_time(timedelta(minutes=20))
    assert harness.push(None) == [[]]


def test_reading_what_is_missing_looks_at_nothing_else() -> None:
    state = CountingMap()
    tree = MemoryTree(MemoryScope.SHORT_TERM, ValueCodec(), state, [], expires=True)
    tree.set("o.x", 1)
    tree.get("z", None, lambda: None)
    write_nodes(state, tree.changes())
    assert state.log == ["get o", "get o.x", "get z", "put o.x", "put o"]


def test_expired_object_leaves_its_place_to_a_value() -> None:
    harness = probe(remember, config=HOUR)
    harness.push("o.a")
    harness.advance_time(timedelta(hours=1))
    assert harness.push("o") == [["o"]]


def test_sequence_numbers_do_not_expire() -> None:
    harness = probe(lambda record, ctx: ctx.sequence_number, config=HOUR)
    harness.push(1)
    harness.advance_time(timedelta(days=400))
    assert harness.push(2) == [1]


def test_without_the_option_nothing_expires() -> None:
    harness = probe(remember)
    harness.push("a")
    harness.advance_time(timedelta(days=4000))
    assert harness.push(None) == [["a"]]
