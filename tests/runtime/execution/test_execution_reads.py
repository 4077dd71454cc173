"""A value of memory that an action changes and does not write: the harness raises, a job warns once."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext
from flink_agents.api.errors import ActionFailedError, UnsavedChangeError
from flink_agents.runtime.state import memory
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


class Order(BaseModel):
    items: list[str] = []


def setup(memory: Any) -> None:
    memory.set("list", ["a"])
    memory.set("dict", {"a": [1]})
    memory.set("set", {1})
    memory.set("basket", Basket())
    memory.set("order", Order())
    memory.set("object.list", [1])


LOST: dict[str, Callable[[Any], Any]] = {
    "default": lambda memory: memory.get("seen", []).append("x"),
    "default dict": lambda memory: memory.get("counts", {}).update(x=1),
    "list": lambda memory: memory.get("list").append("x"),
    "dict": lambda memory: memory.get("dict").update(x=1),
    "inside": lambda memory: memory.get("dict")["a"].append(2),
    "set": lambda memory: memory.get("set").add(2),
    "dataclass": lambda memory: memory.get("basket").items.append("x"),
    "attribute": lambda memory: setattr(memory.get("basket"), "items", ["x"]),
    "model": lambda memory: memory.get("order").items.append("x"),
    "object": lambda memory: memory.get("object").get("list").append(2),
    "fields": lambda memory: memory.get("object").fields()["list"].append(2),
    "another is written": lambda memory: (memory.get("list").append("x"), memory.set("other", 1)),
    "not storable any more": lambda memory: memory.get("list").append(object()),
}

KEPT: dict[str, Callable[[Any], Any]] = {
    "only read": lambda memory: (memory.get("list"), memory.get("dict"), memory.get("none", [])),
    "written": lambda memory: memory.set("list", [*memory.get("list"), "x"]),
    "changed and written": lambda memory: change(memory, "list", lambda value: value.append("x")),
    "changed back": lambda memory: (value := memory.get("list"), value.append("x"), value.pop()),
    "appended": lambda memory: (memory.get("list"), memory.append("list", "x")),
    "replaced": lambda memory: (memory.get("set").add(2), memory.set("set", set())),
    "of a copy": lambda memory: copy.deepcopy(memory.get("list")).append("x"),
    "number": lambda memory: memory.get("number", 1) + 1,
}


def change(memory: Any, path: str, how: Callable[[Any], Any]) -> None:
    value = memory.get(path)
    how(value)
    memory.set(path, value)


def agent(use: Callable[[Any], Any], scope: str) -> Agent:
    def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        setup(getattr(ctx, scope))
        return OutputEvent(output=1)

    def look(event: InputEvent, ctx: RunnerContext) -> None:
        memory = getattr(ctx, scope)
        if scope == "sensory_memory":
            setup(memory)
        use(memory)

    async def look_later(event: InputEvent, ctx: RunnerContext) -> None:
        look(event, ctx)

    return (
        Agent(name="Reader")
        .add_action("act", InputEvent, act, when=lambda event: event.input == "set")
        .add_action("look", InputEvent, look, when=lambda event: event.input == "look")
        .add_action("later", InputEvent, look_later, when=lambda event: event.input == "later")
    )


@each_case("name", LOST)
@each_case("word", ["look", "later"])
def test_a_lost_change_fails_its_action_in_the_harness(name: str, word: str) -> None:
    with OperatorHarness(agent(LOST[name], "short_term_memory")) as harness:
        harness.push("set")
        with pytest.raises(ActionFailedError) as caught:
            harness.push(word)
    text = str(caught.value)
    assert "did not write it" in text and "FA4027" in text and "test_execution_reads.py" in text
    assert isinstance(caught.value.__cause__, UnsavedChangeError) or caught.value.error_code == "FA4027"


@each_case("name", KEPT)
@each_case("scope", ["short_term_memory", "sensory_memory"])
def test_what_is_written_or_only_read_passes(name: str, scope: str) -> None:
    with OperatorHarness(agent(KEPT[name], scope)) as harness:
        harness.push_all(["set", "look", "later"])


def test_a_lost_change_of_sensory_memory_is_found_too() -> None:
    with OperatorHarness(agent(LOST["list"], "sensory_memory")) as harness:
        with pytest.raises(ActionFailedError, match=r"sensory_memory\.set\('list'"):
            harness.push("look")


@pytest.mark.own_conditions
def test_a_job_warns_once_for_each_action(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flink_agents.memory")
    watch = memory.ReadWatch()
    conditions = {"crash": None, "forced_replay": False, "forced_restart": False}
    with OperatorHarness(agent(LOST["default"], "short_term_memory"), **conditions) as harness:
        for subtask in harness._subtasks:
            subtask.shared.reads = watch
        harness.push_all(["look"] * 3)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "did not write it" in caplog.text


def test_a_job_checks_the_first_executions_and_then_few() -> None:
    watch = memory.ReadWatch()
    checked: list[int] = []
    for number in range(1, 2001):
        if skipped := watch.skips.get("act"):
            watch.skips["act"] = skipped - 1
        else:
            watch.begin("act")
            checked.append(number)
    assert checked == [*range(1, memory.FIRST_CHECKED + 1), 1000, 2000]
