"""Names that are nearly those of settings, and settings that say two things, are refused by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, Tool, action, tool
from flink_agents.api.errors import ActionSignatureError, AgentDefinitionError
from flink_agents.api.models.chat import ChatModel
from flink_agents.api.resources import ResourceDescriptor
from flink_agents.api.validation import ValidatedAgent
from flink_agents.plan import compile_agent
from tests.suite.tables import each_case


class Base(Agent):
    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


@each_case(
    ("name", "meant"),
    [
        ("on_eror", "on_error"),
        ("on_supend", "on_suspend"),
        ("output_typ", "output_type"),
        ("side_output", "side_outputs"),
        ("agentname", "agent_name"),
        ("retrys", "retry"),
        ("contextclass", "context_class"),
    ],
)
def test_an_attribute_that_is_nearly_a_setting_is_refused(name: str, meant: str) -> None:
    on_instance = Base()
    setattr(on_instance, name, "ignore")
    builder = Agent(name="a").add_action("x", InputEvent, lambda event, ctx: None)
    setattr(builder, name, "ignore")
    for agent in (type("Desk", (Base,), {name: "ignore"}), on_instance, builder):
        with pytest.raises(AgentDefinitionError, match=repr(name)) as caught:
            compile_agent(agent)
        assert caught.value.fix is not None and f"did you mean {meant!r}?" in caught.value.fix
        assert caught.value.where is not None and caught.value.expected


def test_settings_of_classes_of_this_package_count() -> None:
    class Checked(ValidatedAgent):
        worker = Base
        validator = Base
        attemps = 3

    with pytest.raises(AgentDefinitionError, match="attemps"):
        compile_agent(Checked)


def test_what_the_agent_reads_itself_is_its_own() -> None:
    class Desk(Base):
        output_types = ("a", "b")
        retries = 3
        outputs = ("x",)

        class OutputType:
            pass

        def side_output(self) -> str:
            return self.output_types[0]

    compile_agent(Desk)


@each_case(("name", "meant"), [("on_eror", "on_error"), ("timout", "timeout"), ("emit", "emits")])
def test_a_config_that_is_nearly_a_setting_is_refused(name: str, meant: str) -> None:
    config: dict[str, Any] = {name: "ignore"}
    with pytest.raises(AgentDefinitionError) as caught:
        Agent(name="a").add_action("greet", InputEvent, lambda event, ctx: None, **config)
    assert caught.value.fix is not None and f"did you mean {meant!r}?" in caught.value.fix
    assert "test_plan_near_misses.py:" in (caught.value.where or "")


def test_other_names_are_config() -> None:
    config: dict[str, Any] = {"limit": 3, "names": ["a"], "config": {}, "retries": 2}
    agent = Agent(name="a").add_action("greet", InputEvent, lambda event, ctx: None, **config)
    assert compile_agent(agent).actions[0].config == config


def test_a_wrong_value_of_a_setting_names_the_nearest_one() -> None:
    class Desk(Base):
        on_suspend = "interleav"

    class Odd(Base):
        on_suspend = "nothing like it"

    for kind, fix in (
        (Desk, "write on_suspend='interleave'"),
        (Odd, "write on_suspend='interleave', or omit it"),
    ):
        with pytest.raises(AgentDefinitionError) as caught:
            compile_agent(kind)
        assert caught.value.fix == fix


# -- approvals ---------------------------------------------------------------------------------


async def later(asked: Any) -> bool:
    return True


@each_case("needs", ["yes", "no", "", 3, "a b:c"])
def test_a_text_is_no_answer_whether_somebody_has_to_approve(needs: Any) -> None:
    with pytest.raises(AgentDefinitionError, match="invalid needs_approval"):
        action(InputEvent, needs_approval=needs)(later)
    with pytest.raises(AgentDefinitionError, match="invalid needs_approval"):
        Tool(len, "len", needs_approval=needs)


@each_case("needs", [lambda event, ctx: True, lambda: True, later, partial(lambda a, b, c: True, 1)])
def test_a_function_that_cannot_tell_is_refused_where_it_is_declared(needs: Any) -> None:
    def rate(stars: int) -> int:
        return stars

    async def act(event: Any, ctx: Any) -> None: ...

    for declare in (
        lambda: action(InputEvent, needs_approval=needs)(act),
        lambda: Agent(name="a").add_action("act", InputEvent, act, needs_approval=needs),
        lambda: tool(needs_approval=needs)(rate),
        lambda: Tool(rate, needs_approval=needs),
    ):
        with pytest.raises(ActionSignatureError, match="needs_approval") as caught:
            declare()
        assert caught.value.fix == "write needs_approval=lambda asked: ..."


def test_functions_of_one_value_can_tell() -> None:
    for needs in (bool, lambda request, limit=3: True, partial(lambda a, b: True, 1), True, False):
        action(InputEvent, needs_approval=needs)(later.__class__(later.__code__, globals()))


# -- models ------------------------------------------------------------------------------------


@each_case("more", [{"model": "openai:x"}, {"router": {"models": {"a": ""}, "judge": "a"}}])
def test_a_chat_model_is_described_once(more: dict[str, Any]) -> None:
    with pytest.raises(AgentDefinitionError, match="described twice") as caught:
        ChatModel(clazz="shop:model", **more)
    assert caught.value.found == f"{next(iter(more))} and clazz"
    assert "test_plan_near_misses.py:" in (caught.value.where or "")
    agent = Base().add_resource("m", "chat_model", ResourceDescriptor(clazz="shop:model", **more))
    with pytest.raises(AgentDefinitionError, match="rejects") as refused:
        compile_agent(agent)
    assert f"{next(iter(more))} and clazz" in (refused.value.found or "")
