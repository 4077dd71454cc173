"""Agents whose durable steps are all made by agents, actions and resources of this package."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flink_agents import (
    Agent,
    ChatModel,
    ChatRequestEvent,
    ChatResponseEvent,
    InputEvent,
    OutputEvent,
    ReActAgent,
    RunnerContext,
    action,
    chat_model,
)
from flink_agents.api.validation import Draft, ValidatedAgent, Verdict
from flink_agents.plan import LoadedAgent, compile_with_code
from flink_agents.plan.binding.needs import makes_durable_steps, may_make_durable_steps
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel
from tests.suite.tables import each_case

MODELS: list[Any] = []


def model() -> Any:
    return MODELS[-1]


MODEL = ChatModel(clazz=model)
REACT = ReActAgent(model=MODEL, name="react")


class Judge(ReActAgent):
    """The class form."""

    def __init__(self) -> None:
        super().__init__(model=MODEL)


class Chats(Agent):
    """Asks by an event that an action of this package answers."""

    @chat_model
    def main(self) -> ChatModel:
        return MODEL

    @action(InputEvent)
    def begin(self, event: InputEvent, ctx: RunnerContext) -> ChatRequestEvent:
        return ChatRequestEvent(model="main", messages=event.input)

    @action(ChatResponseEvent)
    def end(self, event: ChatResponseEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.output)


class Inner(Agent):
    """Has an agent as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.helper = Judge()

    @action(InputEvent)
    async def hand_over(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(self.helper, event.input))


@dataclass
class Team:
    members: dict[str, Agent] = field(default_factory=lambda: {"judge": Judge()})


class CallsGlobal(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(REACT, event.input))


class CallsClass(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Judge, event.input))


class CallsNew(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(ReActAgent(model=MODEL), event.input))


class AcceptsAll(Agent):
    @action(InputEvent)
    def judge(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        assert isinstance(event.input, Draft)
        return OutputEvent(output=Verdict.accept())


class Checked(ValidatedAgent):
    worker = Judge
    validator = AcceptsAll


def calls(helper: Any) -> type[Agent]:
    class CallsAttribute(Agent):
        """Has what it calls as an attribute."""

        side_outputs = Checked.side_outputs

        def __init__(self) -> None:
            super().__init__()
            self.helper = helper

        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.call_agent(self.helper, event.input))

    return CallsAttribute


def calls_inside(holder: Any, member: Any) -> type[Agent]:
    class CallsMember(Agent):
        """Calls an agent inside an object of a module."""

        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            [output] = await ctx.gather(ctx.call_agent(member(holder), event.input))
            return OutputEvent(output=output)

    return CallsMember


class Replaced(ReActAgent):
    """Answers without its model, whatever its base class would do."""

    def __init__(self) -> None:
        super().__init__(model=MODEL)

    @action(InputEvent)
    async def react(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)


CALLERS = [
    CallsGlobal,
    CallsClass,
    CallsNew,
    calls(Judge()),
    calls(Judge),
    calls(Chats()),
    calls(Chats),
    calls(Inner()),
    calls(CallsGlobal()),
    Checked,
    calls(Checked()),
    Judge,
    Chats,
]


UNNAMED = [
    calls_inside(Team(), lambda team: team.members["judge"]),
    calls_inside([REACT], lambda agents: agents[0]),
]
"""Which agent they call is only known when they run."""


@each_case("made", [*CALLERS, *UNNAMED])
def test_a_step_of_an_agent_of_the_package_has_a_journal(made: Any) -> None:
    MODELS.append(ScriptedModel(["an answer"]))
    harness = OperatorHarness(made())
    assert harness.push("a question") == ["an answer"]
    harness.close()
    agent = made()
    # A job on a cluster demands a store before it starts, if the code names what it calls.
    bound = LoadedAgent(*compile_with_code(agent))
    assert makes_durable_steps(bound) is (made not in UNNAMED)
    assert may_make_durable_steps(bound)


@each_case("made", [Replaced, calls(Replaced())])
def test_an_agent_with_a_model_needs_a_store_whatever_its_actions_do(made: Any) -> None:
    assert makes_durable_steps(LoadedAgent(*compile_with_code(made())))


@each_case(("made", "may_make_steps"), [(AcceptsAll, False), (calls(AcceptsAll), True)])
def test_an_agent_without_steps_needs_no_store(made: Any, may_make_steps: bool) -> None:
    bound = LoadedAgent(*compile_with_code(made()))
    assert not makes_durable_steps(bound)
    assert may_make_durable_steps(bound) is may_make_steps
