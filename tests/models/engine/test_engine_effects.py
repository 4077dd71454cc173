"""A recorded tool of a Pydantic AI agent changes usage and ``deps``: a replay has the same changes."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from engine_tools import EFFECTS, calls, counted, says, scripted
from pydantic import BaseModel
from pydantic_ai import Agent as ModelAgent, ModelRetry, RunContext
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.usage import RunUsage, UsageLimits

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import StoreError
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.conditions import UNFORCED
from tests.suite.tables import each_case

CRASHES: dict[str, Any] = {**UNFORCED, "crash": "everywhere"}

pytestmark = pytest.mark.own_conditions


class Cart(BaseModel):
    items: list[str] = []


class Client:
    """An object whose state is its own, such as a client of a service."""

    def __init__(self) -> None:
        self.requests = 0


@dataclass
class Deps:
    spent: int = 0
    names: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    prices: dict[str, Any] = field(default_factory=dict)
    cart: Cart = field(default_factory=Cart)
    note: Any = None
    client: Client = field(default_factory=Client)


class Plain:
    """Dependencies as a plain class."""

    def __init__(self) -> None:
        self.spent = 0
        self.names: list[str] = []


helper = ModelAgent(scripted("helper-model", says("well")), name="helper")


async def buy(ctx: RunContext[Any], number: int) -> str:
    """Change all that can be changed, once."""
    EFFECTS.append(("buy", number))
    await asyncio.sleep(0.001 * (5 - number))
    deps: Any = ctx.deps
    if isinstance(deps, dict):
        deps["spent"] = deps.get("spent", 0) + number
    elif isinstance(deps, list):
        deps.append(number)
    elif isinstance(deps, Plain):
        deps.spent += number
        deps.names.append(str(number))
    elif deps is not None:
        deps.spent += number
        deps.names.append(str(number))
        deps.seen.add(str(number))
        deps.prices[str(number)] = {"price": [number, (1, 2.5)]}
        deps.cart.items.append(str(number))
        deps.note = None if deps.note else b"new"
        deps.client.requests += 1
    ctx.usage.details["bought"] = ctx.usage.details.get("bought", 0) + 1
    result = await helper.run("hm", usage=ctx.usage)
    return result.output


async def ask_again(ctx: RunContext[Any]) -> str:
    """Ask for another call, after it used the helper."""
    EFFECTS.append("ask_again")
    await helper.run("hm", usage=ctx.usage)
    if counted()["ask_again"] == 1:
        raise ModelRetry("again")
    return "fine"


shopper = ModelAgent(
    scripted(
        "shopper-model",
        calls(("buy", {"number": 1}), ("buy", {"number": 2}), ("ask_again", {})),
        calls(("buy", {"number": 3}), ("ask_again", {})),
        says("done"),
    ),
    name="shopper",
    deps_type=Any,
    capabilities=[FlinkDurability()],
    tools=[buy, ask_again],
    retries=3,
)

DEPS: dict[str, Any] = {
    "none": lambda: None,
    "dataclass": Deps,
    "plain class": Plain,
    "dict": dict,
    "list": list,
}
KIND: list[str] = []
SEEN: list[Any] = []


class Shop(Agent):
    """Runs the agent, and says what it used, and what its dependencies are afterwards."""

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        deps = DEPS[KIND[0]]()
        names = getattr(deps, "names", None)
        usage = RunUsage()
        result = await shopper.run("go", deps=deps, usage=usage)
        assert names is getattr(deps, "names", None)
        client = getattr(deps, "client", None)
        state = deps if isinstance(deps, dict | list) else vars(deps) if deps is not None else None
        values = {k: v for k, v in state.items() if k != "client"} if isinstance(state, dict) else state
        # Not its repr: the order of a set depends on how it was filled, and on the hashes of this process.
        SEEN.append([usage.requests, usage.tool_calls, usage.input_tokens, usage.details, deepcopy(values)])
        if client is not None:
            client.requests = 0
        await ctx.durable_execute_async(asyncio.sleep, 0)
        return OutputEvent(output=result.output)


@each_case("kind", [*DEPS])
def test_a_replay_has_the_same_usage_and_dependencies(kind: str) -> None:
    KIND[:] = [kind]
    SEEN.clear()
    EFFECTS.clear()
    with OperatorHarness(Shop(), **UNFORCED) as harness:
        assert harness.push("go")[0].startswith("done")
    [first] = SEEN
    # Three requests of the shopper, and one of the helper in each call of a tool.
    assert first[0] == 3 + 5
    assert first[3]["bought"] == 3
    SEEN.clear()
    EFFECTS.clear()
    # The end of the action is not recorded, so that another attempt replays all calls.
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    with OperatorHarness(Shop(), store=faults.store, **UNFORCED) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(StoreError):
            harness.push("go")
        harness.restore(snapshot)
        assert harness.push("go")[0].startswith("done")
    # The order in which the tools of one response end is that of the first attempt.
    assert SEEN[0] == SEEN[1]
    assert SEEN[0][:4] == first[:4]
    assert counted()["buy", 3] == 1


def test_whatever_crashes_a_run_has_the_same_usage_and_dependencies() -> None:
    KIND[:] = ["dataclass"]
    SEEN.clear()
    with OperatorHarness(Shop(), **CRASHES) as harness:
        assert harness.push("go")[0].startswith("done")
    assert len(SEEN) > 1
    assert [seen[:4] for seen in SEEN] == [SEEN[0][:4]] * len(SEEN)


class Limited(Agent):
    """Runs the agent with a limit, in as many attempts as the crashes make."""

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        try:
            await shopper.run("go", deps=Deps(), usage_limits=UsageLimits(request_limit=6))
        except UsageLimitExceeded as error:
            return OutputEvent(output=str(error))
        return OutputEvent(output="no limit")


def test_limits_hold_through_crashes() -> None:
    with OperatorHarness(Limited(), **CRASHES) as harness:
        [output] = harness.push("go")
    assert "request_limit of 6" in output
