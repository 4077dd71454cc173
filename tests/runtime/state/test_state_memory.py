"""Memory as actions use it: paths, objects, values, lifetimes and scopes."""

from __future__ import annotations

from typing import Any

import pytest
from core_agents import action_fails, outputs_of, probe
from core_values import SUPPORTED, Box, Item, Opaque, Word, same

from flink_agents import Agent, Event, InputEvent, MemoryObject, MemoryRef, MemoryScope, OutputEvent, action
from flink_agents.api.errors import ActionFailedError, MemoryPathError, UnserializableValueError
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

SCOPES = ["sensory_memory", "short_term_memory"]


@pytest.fixture(params=SCOPES)
def scope(request: pytest.FixtureRequest) -> str:
    return request.param


def in_memory(scope: str, body: Any) -> Any:
    """What ``body(memory)`` returns inside an action."""
    return outputs_of(lambda record, ctx: body(getattr(ctx, scope)))[0]


# -- values --------------------------------------------------------------------------


@each_case("value", SUPPORTED.values(), ids=SUPPORTED.keys())
def test_value_is_kept_across_runs_with_its_type(value: Any) -> None:
    def body(record: Any, ctx: Any) -> Any:
        if record is None:
            return ctx.short_term_memory.get("value")
        ctx.short_term_memory.set("value", SUPPORTED[record])
        return None

    name = next(name for name, supported_value in SUPPORTED.items() if supported_value is value)
    harness = probe(body)
    harness.push(name)
    assert same(harness.push(None), [value])


def test_values_are_copies(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        numbers = [1]
        memory.set("a", numbers)
        numbers.append(2)
        first = memory.get("a")
        first.append(3)
        seen = memory.get("a")
        first.pop()
        return seen

    assert in_memory(scope, body) == [1]


def test_default_is_for_what_is_missing_only(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        for name, value in (("none", None), ("zero", 0), ("empty", "")):
            memory.set(name, value)
        return [memory.get(name, "default") for name in ("none", "zero", "empty", "missing", "a.b")]

    assert in_memory(scope, body) == [None, 0, "", "default", "default"]


def test_value_that_state_cannot_hold_fails_where_it_is_set(scope: str) -> None:
    def body(record: Any, ctx: Any) -> None:
        getattr(ctx, scope).set("a", {"b": [Opaque()]})

    with action_fails(UnserializableValueError, "test_state_memory.py"):
        outputs_of(body)


def test_memory_object_is_no_value() -> None:
    def body(record: Any, ctx: Any) -> None:
        ctx.short_term_memory.set("copy", ctx.short_term_memory.new_object("a"))

    with action_fails(UnserializableValueError, "TreeObject"):
        outputs_of(body)


def test_pickle_by_opt_in() -> None:
    def body(record: Any, ctx: Any) -> Any:
        ctx.short_term_memory.set("a", 1j)
        return ctx.short_term_memory.get("a")

    assert outputs_of(body, config={"state.allow-pickle": True}) == [1j]


# -- paths and objects ---------------------------------------------------------------


def test_objects_on_the_way_are_created(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        memory.set("a.b.c", 1)
        inner = memory.get("a")
        return [
            isinstance(inner, MemoryObject),
            inner.get("b.c"),
            inner.get("b").get("c"),
            memory.exists("a.b"),
            memory.field_names(),
            inner.field_names(),
        ]

    assert in_memory(scope, body) == [True, 1, 1, True, ["a"], ["b"]]


def test_paths_are_relative_to_their_object(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        order = memory.new_object("order")
        ref = order.set("total", 3)
        order.new_object("lines").append("all", "x")
        order.set("lines.count", 1)
        return ref.path, memory.get("order.total"), memory.get("order.lines.all"), order.get("lines.count")

    assert in_memory(scope, body) == ("order.total", 3, ["x"], 1)


def test_fields_gives_values_and_objects(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        memory.set("b", 1)
        memory.set("a.x", 2)
        fields = memory.fields()
        return list(fields), fields["b"], fields["a"].fields(), memory.field_names()

    assert in_memory(scope, body) == (["a", "b"], 1, {"x": 2}, ["a", "b"])


@each_case("name", ["ä", "a b", "a\\b", "a\nb", "\x00", "ключ", "\U0001f600", '"', "a_1", "$", "\\u0041"])
def test_any_text_without_dots_is_a_name(name: str) -> None:
    def body(record: Any, ctx: Any) -> Any:
        memory = ctx.short_term_memory
        if record == "write":
            memory.set(f"o.{name}", name)
        return memory.get(f"o.{name}"), memory.get("o").field_names()

    harness = probe(body)
    harness.push("write")
    assert harness.push("read") == [(name, [name])]
    assert harness.memory() == {f"o.{name}": name}


def test_names_that_begin_alike_are_apart(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        memory.set("a.x", 1)
        memory.set("ab.x", 2)
        memory.set("a_b", 3)
        memory.delete("a")
        return memory.field_names(), memory.exists("a.x"), memory.get("ab.x")

    assert in_memory(scope, body) == (["a_b", "ab"], False, 2)


@each_case("path", ["", ".", ".a", "a.", "a..b", None, 3, ["a"], b"a", ("a",)], ids=repr)
@each_case("method", ["get", "set", "append", "delete", "new_object", "exists"])
def test_malformed_path_is_a_named_error(method: str, path: Any, scope: str) -> None:
    def body(record: Any, ctx: Any) -> None:
        arguments = (path, 1) if method in ("set", "append") else (path,)
        getattr(getattr(ctx, scope), method)(*arguments)

    with action_fails(MemoryPathError, "malformed"):
        outputs_of(body)


def test_malformed_path_inside_an_object_is_a_named_error() -> None:
    with action_fails(MemoryPathError, "malformed"):
        outputs_of(lambda record, ctx: ctx.short_term_memory.new_object("o").set("", 1))


def test_a_text_of_another_class_is_a_path(scope: str) -> None:
    assert in_memory(scope, lambda memory: (memory.set(Word.YES, 1), memory.get("yes"))[1]) == 1


WRONG_PLACES: dict[str, tuple[Any, str]] = {
    "through a plain value": (lambda memory: (memory.set("a", 1), memory.set("a.b", 2)), "'a' holds int"),
    "deep below a plain value": (
        lambda memory: (memory.set("a", [1]), memory.set("a.b.c", 2)),
        "'a' holds list",
    ),
    "object below a plain value": (
        lambda memory: (memory.set("a", 1), memory.new_object("a.b")),
        "plain value",
    ),
    "value over an object": (lambda memory: (memory.set("a.b", 1), memory.set("a", 2)), "is an object"),
    "object over a value": (lambda memory: (memory.set("a", 1), memory.new_object("a")), "overwrite=True"),
    "append to a number": (lambda memory: (memory.set("a", 1), memory.append("a", 2)), "is no list"),
    "append to a tuple": (lambda memory: (memory.set("a", (1,)), memory.append("a", 2)), "found: tuple"),
    "append to an object": (
        lambda memory: (memory.new_object("a"), memory.append("a", 2)),
        "found: an object",
    ),
    "append below a value": (lambda memory: (memory.set("a", 1), memory.append("a.b", 2)), "'a' holds int"),
}


@pytest.mark.parametrize(("body", "text"), WRONG_PLACES.values(), ids=WRONG_PLACES.keys())
def test_wrong_place_is_a_named_error(body: Any, text: str, scope: str) -> None:
    with action_fails(MemoryPathError, text):
        in_memory(scope, body)


def test_nothing_is_below_a_plain_value(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        memory.set("a", {"b": 1})
        memory.set("o.p", 1)
        paths = ["a.b", "a.b.c", "o.p.q", "o.p.q.r"]
        return [(memory.exists(path), memory.delete(path)) for path in paths], memory.get("o.q.r", "nothing")

    assert in_memory(scope, body) == ([(False, False)] * 4, "nothing")


@pytest.mark.parametrize("path", ["a.b", "a.b.c", "o.p.q", "o.p.q.r"])
def test_reading_through_a_plain_value_is_a_named_error(scope: str, path: str) -> None:
    def body(memory: MemoryObject) -> Any:
        memory.set("a", {"b": 1})
        memory.set("o.p", 1)
        return memory.get(path, "nothing") if ".q" not in path else memory.get("o").get(path[2:])

    with action_fails(MemoryPathError, "leads through a plain value"):
        in_memory(scope, body)


def test_reading_through_a_plain_value_of_an_earlier_run_is_a_named_error() -> None:
    def body(record: Any, ctx: Any) -> Any:
        memory = ctx.short_term_memory
        return memory.get(record) if record is not None else memory.set("d", {"x": 1}).path

    harness = probe(body, config={"actions.on-error": "dead-letter"})
    assert harness.push_all(["d.x", None, "d.x", "d.x.y", "e.x"]) == [None, "d", None]
    assert [letter.error_type for letter in harness.dead_letters] == ["MemoryPathError"] * 2


def test_new_object(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        memory.new_object("a").set("x", 1)
        again = memory.new_object("a").field_names()
        memory.set("b", 5)
        replaced = memory.new_object("b", overwrite=True).field_names()
        retained_names = memory.new_object("a", overwrite=True).field_names()
        return (
            again,
            replaced,
            isinstance(memory.get("b"), MemoryObject),
            retained_names,
            memory.new_object("c.d").fields(),
        )

    assert in_memory(scope, body) == (["x"], [], True, ["x"], {})


def test_append(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        refs = [memory.append("log.all", item) for item in (1, (2,), [3], Box())]
        memory.set("made", ["a"])
        memory.append("made", "b")
        return refs[0] == refs[-1], memory.get("log.all"), memory.get("made")

    assert in_memory(scope, body) == (True, [1, (2,), [3], Box()], ["a", "b"])


def test_delete(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        memory.set("a.b.c", 1)
        memory.set("a.d", 2)
        results = [memory.delete("a.b"), memory.exists("a.b.c"), memory.get("a").field_names()]
        results += [memory.delete("a.b"), memory.delete("a"), memory.delete("a"), memory.field_names()]
        memory.set("a", "a value now")
        return [*results, memory.get("a")]

    assert in_memory(scope, body) == [True, False, ["d"], False, True, False, [], "a value now"]


def test_deleted_object_stays_deleted_in_later_runs() -> None:
    def body(record: Any, ctx: Any) -> Any:
        memory = ctx.short_term_memory
        if record == "write":
            memory.set("a.b", 1)
            memory.set("a.c.d", 2)
            memory.set("z", 3)
        if record == "delete":
            memory.delete("a")
        return memory.field_names()

    harness = probe(body)
    assert harness.push_all(["write", "delete", "read"]) == [["a", "z"], ["z"], ["z"]]
    assert harness.memory() == {"z": 3}


# -- references ----------------------------------------------------------------------


class Pointer(Event):
    ref: MemoryRef


class Pointing(Agent):
    """Hands a reference from one action to the next one."""

    @action(InputEvent)
    def first(self, event: InputEvent, ctx: Any) -> Pointer:
        memory = ctx.sensory_memory if event.input == "sensory" else ctx.short_term_memory
        return Pointer(ref=memory.set("big.value", Item(name="pen")))

    @action(Pointer)
    def second(self, event: Pointer, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(event.ref, event.ref.resolve(ctx), ctx.resolve(event.ref)))


@each_case("kind", list(MemoryScope))
def test_reference_travels_in_events(kind: MemoryScope) -> None:
    harness = OperatorHarness(Pointing)
    ref = MemoryRef(kind, "big.value")
    assert harness.push(kind.value) == [(ref, Item(name="pen"), Item(name="pen"))]


def test_reference_works_in_get_and_from_any_object(scope: str) -> None:
    def body(memory: MemoryObject) -> Any:
        ref = memory.set("a.b", 1)
        return memory.get(ref), memory.new_object("other").get(ref), memory.get(ref, 5)

    assert in_memory(scope, body) == (1, 1, 1)


def test_reference_into_the_other_memory_is_refused() -> None:
    with action_fails(MemoryPathError, "points into sensory memory"):
        outputs_of(lambda record, ctx: ctx.short_term_memory.get(ctx.sensory_memory.set("a", 1)))


def test_reference_to_nothing_is_a_named_error() -> None:
    def body(record: Any, ctx: Any) -> Any:
        ref = ctx.short_term_memory.set("a", 1)
        ctx.short_term_memory.delete("a")
        return ctx.resolve(ref)

    with action_fails(MemoryPathError, "nothing is at 'a'"):
        outputs_of(body)


def test_reference_can_be_remembered_and_resolves_to_the_present_value() -> None:
    def body(record: Any, ctx: Any) -> Any:
        memory = ctx.short_term_memory
        if record == 1:
            memory.set("ref", memory.set("value", "old"))
            memory.set("value", "new")
        return memory.get("ref").resolve(ctx)

    assert outputs_of(body, 1, 2) == ["new", "new"]


def test_sensory_reference_of_an_earlier_run_is_gone() -> None:
    def body(record: Any, ctx: Any) -> Any:
        if record == 1:
            ctx.short_term_memory.set("ref", ctx.sensory_memory.set("a", 1))
            return None
        return ctx.short_term_memory.get("ref").resolve(ctx)

    harness = probe(body)
    harness.push(1)
    with action_fails(MemoryPathError, "sensory memory any more"):
        harness.push(2)


# -- lifetimes and scopes ------------------------------------------------------------


def test_sensory_memory_ends_with_the_run_and_short_term_memory_does_not() -> None:
    def body(record: Any, ctx: Any) -> Any:
        values = ctx.sensory_memory.get("a"), ctx.short_term_memory.get("a")
        ctx.sensory_memory.set("a", record)
        ctx.short_term_memory.set("a", record)
        return values

    harness = probe(body)
    assert harness.push_all([1, 2]) == [(None, None), (None, 1)]
    assert harness.memory() == {"a": 2}


def test_memory_belongs_to_its_key() -> None:
    def body(record: Any, ctx: Any) -> Any:
        ctx.short_term_memory.append("seen", record)
        return ctx.short_term_memory.get("seen")

    harness = probe(body, key_selector=lambda record: record[0])
    assert harness.push_all(["a1", "b1", "a2"]) == [["a1"], ["b1"], ["a1", "a2"]]
    assert harness.memory("a") == {"seen": ["a1", "a2"]}
    assert harness.memory("c") == {}


def test_memory_belongs_to_its_agent() -> None:
    def body(record: Any, ctx: Any) -> str:
        ctx.short_term_memory.set("name", ctx.agent_name)
        return ctx.agent_name

    harnesses = [probe(body, name=name) for name in ("one", "two")]
    assert [harness.push(1) for harness in harnesses] == [["one"], ["two"]]
    assert [harness.memory() for harness in harnesses] == [{"name": "one"}, {"name": "two"}]


def test_both_memories_are_apart() -> None:
    def body(record: Any, ctx: Any) -> Any:
        ctx.sensory_memory.set("a", 1)
        ctx.short_term_memory.set("a.b", 2)
        return ctx.sensory_memory.get("a"), ctx.short_term_memory.get("a.b")

    assert outputs_of(body) == [(1, 2)]


def test_an_error_that_the_action_catches_changes_nothing() -> None:
    def body(record: Any, ctx: Any) -> Any:
        memory = ctx.short_term_memory
        memory.set("a", 1)
        for attempt in (lambda: memory.set("a.b.c", 2), lambda: memory.set("x.y", Opaque())):
            with pytest.raises((MemoryPathError, UnserializableValueError)):
                attempt()
        return memory.field_names()

    harness = probe(body)
    assert harness.push(1) == [["a"]]
    assert harness.memory() == {"a": 1}


def test_failed_run_leaves_no_trace() -> None:
    def body(record: Any, ctx: Any) -> None:
        ctx.short_term_memory.set("a", record)
        if record == 2:
            raise ValueError(record)

    harness = probe(body)
    harness.push(1)
    previous_state = harness.state()
    with pytest.raises(ActionFailedError):
        harness.push(2)
    assert harness.state() == previous_state
