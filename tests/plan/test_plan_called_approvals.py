"""Whether somebody has to approve what an asked agent does is read from code and marks."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from flink_agents import Agent, InputEvent, OutputEvent, action, tool
from flink_agents.api.validation import ValidatedAgent, Verdict
from flink_agents.plan import LoadedAgent, compile_with_code
from flink_agents.plan.binding.needs import needs_approvals
from tests.suite.tables import each_case


class Plain(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


class Marked(Agent):
    @action(InputEvent, needs_approval=True)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


class WithATool(Plain):
    @tool(needs_approval=True)
    @staticmethod
    def refund(order: str) -> str:
        """Refund an order."""
        return order


class WithArguments(Marked):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit


class Fails(Marked):
    """Cannot be made where the job is put together."""

    def __init__(self) -> None:
        raise OSError("no such service")


class FailsWithoutAMark(Plain):
    def __init__(self) -> None:
        raise OSError("no such service")


class AsksOneThatFails(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Fails, event.input))


class AsksAnotherThatFails(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(FailsWithoutAMark, event.input))


STAND_IN: Any = MagicMock()


class NamesAStandIn(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Plain, STAND_IN.of(event.input)))


class AsksAClass(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Marked, event.input))


class AsksOneWithATool(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent_all(WithATool, event.input))


MADE = Marked()


class AsksAGlobal(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(MADE, event.input))


class AsksByArguments(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(WithArguments(5), event.input))


class AsksAnAttribute(Agent):
    def __init__(self) -> None:
        super().__init__()
        self.experts = {"pay": Marked()}

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await self.consult(event.input, ctx))

    async def consult(self, asked: str, ctx: Any) -> Any:
        return (await ctx.call_agent_traced(self.experts[asked], asked)).outputs


async def consult(ctx: Any, asked: str) -> Any:
    return await ctx.call_agent(Marked, asked)


WAYS = {"pay": consult}


class AsksInATable(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await WAYS[event.input](ctx, event.input))


class AsksOneThatAsks(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(AsksAnAttribute, event.input))


class HasItAsATool(Plain):
    pay = Marked().as_tool("Pays.")


class Validates(ValidatedAgent):
    worker = Plain
    validator = Marked


class ValidatesPlain(ValidatedAgent):
    worker = Plain
    validator = Plain


class AsksPlain(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Plain, event.input))


class OnlyNames(Agent):
    """Names a marked agent, and asks another one elsewhere."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        answer = await self.consult(event.input, ctx)
        return OutputEvent(output=(answer, Marked.__name__, Verdict.accept()))

    async def consult(self, asked: Any, ctx: Any) -> Any:
        return await ctx.call_agent(Plain, asked)


class AsksInACircle(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(AsksInACircle, event.input))


NEED = [Marked, AsksAClass, AsksOneWithATool, AsksAGlobal, AsksByArguments, AsksAnAttribute]
NEED += [AsksOneThatFails, AsksInATable, AsksOneThatAsks, HasItAsATool, Validates]


@each_case("agent", NEED)
def test_agents_that_ask_such_as_need_approvals(agent: type[Agent]) -> None:
    assert needs_approvals(LoadedAgent(*compile_with_code(agent)))


@each_case(
    "agent",
    [Plain, AsksAnotherThatFails, NamesAStandIn, AsksPlain, OnlyNames, ValidatesPlain, AsksInACircle],
)
def test_agents_that_ask_none_of_these(agent: type[Agent]) -> None:
    assert not needs_approvals(LoadedAgent(*compile_with_code(agent)))


def test_tools_that_were_added_to_an_agent() -> None:
    built_agent = Plain("built").add_resource("pay", "tool", Marked().as_tool("Pays."))
    assert needs_approvals(LoadedAgent(*compile_with_code(built_agent)))
