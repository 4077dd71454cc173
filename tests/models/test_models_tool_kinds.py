"""Every kind of tool x what can go wrong with a call x whether the tool may be called again.

No second effect of a call whose outcome nobody knows, one key in all attempts of a call, and the documented
error, or a person, in the place of another call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as ModelAgent, FunctionToolset, Tool as ModelTool
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from raw_mcp import LISTED, Raw, raw_server

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    MCPServer,
    OnError,
    OutputEvent,
    RetryPolicy,
    RunnerContext,
    Skills,
    Tool,
    action,
)
from flink_agents.api.errors import StoreError
from flink_agents.models.engine import FlinkDurability, as_tool, server_toolset, skills_toolset
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults
from tests.suite.factors import factors
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

TIMEOUT = 1.5
"""Seconds that a call may take if one hangs; the others must end within it, also on a loaded machine."""

ANSWER = 3.0
"""Seconds that a server has for each of its answers if one hangs."""

PAID: list[str] = []
"""The effects: the idempotency key of each call, if it has one."""

TROUBLE: list[str] = []
"""What goes wrong with the next calls."""

GATE = threading.Event()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    GATE.set()


def trouble() -> str:
    return TROUBLE.pop() if TROUBLE else "none"


# -- what the model calls -----------------------------------------------------------------


def pay(how: str) -> str:
    """Pay."""
    return pay_by_key(how, "")


def pay_by_key(how: str, idempotency_key: str) -> str:
    """Pay."""
    PAID.append(idempotency_key)
    kind = trouble()
    if kind == "hang":
        GATE.wait()
    if kind == "refuse":
        raise ModelRetry("pay otherwise")
    return "paid"


async def pay_async(how: str) -> str:
    """Pay."""
    return await pay_async_by_key(how, "")


async def pay_async_by_key(how: str, idempotency_key: str) -> str:
    """Pay."""
    PAID.append(idempotency_key)
    kind = trouble()
    if kind == "hang":
        await asyncio.Event().wait()
    if kind == "refuse":
        raise ModelRetry("pay otherwise")
    return "paid"


class Till:
    """Has methods that are tools."""

    def pay(self, how: str) -> str:
        """Pay."""
        return pay(how)

    def pay_by_key(self, how: str, idempotency_key: str) -> str:
        """Pay."""
        return pay_by_key(how, idempotency_key)


def call_until_paid(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the only tool, again if it says that the call was wrong, and say what it returned."""
    last = messages[-1].parts[-1]
    wrong = getattr(last, "outcome", "") == "retried" or last.part_kind == "retry-prompt"
    if len(messages) > 1 and not wrong:
        return ModelResponse([TextPart(str(getattr(last, "content", last)))])
    # The tool that pays is the last one of a toolset of skills.
    name = info.function_tools[-1].name
    arguments = {"how": "well"}
    if name == "run_script":
        arguments = {"skill": "till", "script": "scripts/pay.sh"}
    elif name == "cashier":
        arguments = {"request": "well"}
    return ModelResponse([ToolCallPart(name, arguments)])


model = FunctionModel(call_until_paid)

# -- the agents ---------------------------------------------------------------------------

GIVEN: list[Any] = []
"""What agents are given that no plan can hold; they get the place of it."""


def keep(given: Any) -> int:
    GIVEN.append(given)
    return len(GIVEN) - 1


class Chatting(Agent):
    """Lets a chat model use a tool."""

    def __init__(self, kind: str, place: int, unknown: str, seconds: float) -> None:
        spec = ChatModel(clazz=f"{__name__}:model", tool_timeout=seconds, on_unknown_outcome=unknown)
        self.add_resource("clerk", "chat_model", spec)
        self.add_resource("pay", kind, GIVEN[place])

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", event.input, tools=["pay"])).output)


HASTY = RetryPolicy(initial_interval=0.001, max_attempts=20)


class HastyChatting(Chatting):
    """Gives up before the tool does, and tries again."""

    @action(InputEvent, on_error=OnError.DEAD_LETTER, timeout=2.0, retry=HASTY)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", event.input, tools=["pay"])).output)


class Whole(Agent):
    """Runs a whole agent of pydantic-ai that has the tool; the server is one of the agent on the stream."""

    def __init__(self, place: int, unknown: str, timeout: float | None) -> None:
        options, servers = GIVEN[place]
        for name, server in servers.items():
            self.add_resource(name, "mcp_server", server)
        calls: Any = {} if timeout is None else {"timeout": timeout}
        durability = FlinkDurability[None](tool_calls=calls, on_unknown_outcome=unknown)
        self.agent = ModelAgent(model, name="worker", capabilities=[durability], **options)

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(event.input)).output)


class HastyWhole(Whole):
    @action(InputEvent, on_error=OnError.DEAD_LETTER, timeout=2.0, retry=HASTY)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await self.agent.run(event.input)).output)


# -- the kinds ----------------------------------------------------------------------------


class Shop:
    """Where tools of a kind are made, and what they did.

    Args:
        folder: A folder of its own.
        again: True if the tool may be called again, False if not, None if it says nothing.
        patient: Whether a call has a timeout; else its action has.
        hangs: Whether a call hangs; else timeouts are so long that none passes.
    """

    def __init__(
        self, folder: Path, again: bool | None, patient: bool, hangs: bool, stack: ExitStack
    ) -> None:
        self.folder = folder
        self.again = again
        self.patient = patient
        self.hangs = hangs
        self._stack = stack
        self.raw: Raw | None = None

    @property
    def seconds(self) -> float:
        return TIMEOUT if self.patient and self.hangs else 60

    @property
    def answer(self) -> float:
        return ANSWER if self.patient and self.hangs else 60

    def url(self) -> str:
        self.raw, url = self._stack.enter_context(raw_server())
        if self.again:
            hints = {"annotations": {"idempotentHint": True}}
            self.raw.answers["tools/list"] = {"tools": [{**LISTED["tools"][0], **hints}]}
        return url

    def server(self) -> MCPServer:
        return MCPServer(url=self.url(), timeout=self.answer, retry={"initial_interval": 0.001})

    def skills(self) -> Skills:
        scripts = self.folder / "till" / "scripts"
        scripts.mkdir(parents=True)
        (scripts.parent / "SKILL.md").write_text("---\nname: till\ndescription: Pays.\n---\nRun the script.")
        (scripts / "pay.sh").write_text(SCRIPT)
        where = {"PAID": str(self.folder / "paid"), "TROUBLE": str(self.folder / "trouble")}
        again: Any = ["till/*"] if self.again else False
        return Skills(str(self.folder), timeout=self.answer, environment=where, idempotent=again)

    @property
    def metadata(self) -> Any:
        return None if self.again is None else {"flink": {"idempotent": self.again}}

    def make_trouble(self, kind: str) -> None:
        """Let the next call fail in a way."""
        PAID.clear()
        TROUBLE[:] = [kind]
        if self.raw is not None:
            self.raw.hangs, self.raw.refuses = int(kind == "hang"), int(kind == "refuse")
        (self.folder / "trouble").write_text(kind)

    @property
    def paid(self) -> list[str]:
        """The keys of all calls."""
        if self.raw is not None:
            return [call["_meta"]["flink-agents/idempotency-key"] for call in self.raw.calls]
        file = self.folder / "paid"
        return PAID or (file.read_text().split() if file.exists() else [])


SCRIPT = """#!/bin/sh
echo key >> "$PAID"
kind=$(cat "$TROUBLE")
echo none > "$TROUBLE"
[ "$kind" = hang ] && sleep 60
echo paid
"""


def sub_agent(shop: Shop) -> ModelTool[Any]:
    """An agent as the tool of another one."""
    inner = ModelAgent(model, name="inner", tools=[ModelTool(pay_async, name="pay")])
    tool = as_tool(inner, name="cashier")
    tool.metadata = shop.metadata
    return tool


def chatting(kind: str, tool: Any, shop: Shop, unknown: str) -> Agent:
    # Servers and scripts take longer to begin than functions.
    seconds = shop.seconds if kind == "tool" else 60
    return (Chatting if shop.patient else HastyChatting)(kind, keep(tool), unknown, seconds)


def whole(shop: Shop, unknown: str, servers: Any = None, **given: Any) -> Agent:
    return (Whole if shop.patient else HastyWhole)(keep((given, servers or {})), unknown, None)


def whole_of_functions(shop: Shop, unknown: str, **given: Any) -> Agent:
    """The same for tools that have no time of their own."""
    timeout = shop.seconds if shop.patient else None
    return (Whole if shop.patient else HastyWhole)(keep((given, {})), unknown, timeout)


def function_tool(plain: Any, keyed: Any) -> Callable[[Shop, str], Agent]:
    def make(shop: Shop, unknown: str) -> Agent:
        tool = Tool(keyed if shop.again else plain, "pay", idempotent=shop.again)
        return chatting("tool", tool, shop, unknown)

    return make


def model_tool(shop: Shop) -> ModelTool[Any]:
    function: Any = pay_by_key if shop.again else pay
    return ModelTool(function, name="pay", metadata=shop.metadata)


def async_toolset(shop: Shop) -> FunctionToolset[Any]:
    function: Any = pay_async_by_key if shop.again else pay_async
    return FunctionToolset([ModelTool(function, name="pay", metadata=shop.metadata)], id="till")


KINDS: dict[str, Callable[[Shop, str], Agent]] = {
    "function": function_tool(pay, pay_by_key),
    "async function": function_tool(pay_async, pay_async_by_key),
    "bound method": function_tool(Till().pay, Till().pay_by_key),
    "MCP": lambda shop, unknown: chatting("mcp_server", shop.server(), shop, unknown),
    "skill": lambda shop, unknown: chatting("skills", shop.skills(), shop, unknown),
    "whole: function": lambda shop, unknown: whole_of_functions(shop, unknown, tools=[model_tool(shop)]),
    "whole: agent": lambda shop, unknown: whole_of_functions(shop, unknown, tools=[sub_agent(shop)]),
    "whole: toolset": lambda shop, unknown: whole_of_functions(shop, unknown, toolsets=[async_toolset(shop)]),
    "whole: MCP of the job": lambda shop, unknown: whole(
        shop,
        unknown,
        {"shop": shop.server()},
        toolsets=[server_toolset("shop", on_unknown_outcome=unknown)],
    ),
    "whole: MCP": lambda shop, unknown: whole(
        shop, unknown, toolsets=[MCPToolset(shop.url(), id="shop", read_timeout=shop.answer)]
    ),
    "whole: skill": lambda shop, unknown: whole(shop, unknown, toolsets=[skills_toolset(shop.skills())]),
}

KEYED = {"MCP", "whole: MCP of the job", "whole: MCP"}
"""What has a key although the tool takes none."""


class Case:
    """A harness with one kind of tool.

    Args:
        tmp_path: A folder, below which this makes one.
        kind: The kind.
        again: True if the tool may be called again, False if not, None if it says nothing.
        patient: False if the action gives up before the tool.
        unknown: What happens if nobody knows the outcome.
        hangs: True if a call hangs, so that its timeout has to pass.
    """

    def __init__(
        self,
        tmp_path: Path,
        kind: str,
        again: bool | None = None,
        patient: bool = True,
        unknown: str = "fail",
        hangs: bool = True,
        **options: Any,
    ) -> None:
        GATE.clear()
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        self._stack = ExitStack()
        self.shop = Shop(folder, again, patient, hangs, self._stack)
        unforced: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_serialization": False}
        agent = KINDS[kind](self.shop, unknown)
        self.harness = self._stack.enter_context(OperatorHarness(agent, **unforced, **options))

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *raised: object) -> None:
        GATE.set()
        if self.shop.raw is not None:
            self.shop.raw.freed.set()
        self._stack.close()

    def settle(self, kind: str = "none") -> None:
        """Let the model pay, and all attempts end."""
        self.shop.make_trouble(kind)
        self.harness.push("go")
        for _ in range(100):
            if self.harness.outputs or self.harness.dead_letters or self.harness.approvals:
                return
            self.harness.advance_time(1000)

    def check_unknown(self) -> None:
        """Check that the run ended with the documented error, and that nobody paid twice."""
        [letter] = self.harness.dead_letters
        assert self.harness.outputs == []
        assert letter.error_type in ("ToolOutcomeUnknownError", "MCPOutcomeUnknownError")
        assert "FA9040" in letter.traceback or "FA9203" in letter.traceback
        assert len(self.shop.paid) == 1


@factors(strength=1, kind=KINDS, patient=[True, False])
def test_a_call_without_an_end_is_not_repeated(tmp_path: Path, kind: str, patient: bool) -> None:
    with Case(tmp_path, kind, None, patient) as case:
        case.settle("hang")
        case.check_unknown()


@factors(strength=1, kind=[kind for kind in KINDS if "skill" not in kind], patient=[True, False])
def test_a_call_that_may_be_repeated_keeps_its_key(tmp_path: Path, kind: str, patient: bool) -> None:
    with Case(tmp_path, kind, True, patient) as case:
        case.settle("hang")
        [output] = case.harness.outputs
        assert "paid" in output
        assert (len(case.shop.paid), len(set(case.shop.paid))) == (2, 1)


@each_case("kind", KINDS)
def test_a_model_that_was_told_what_is_wrong_calls_again(tmp_path: Path, kind: str) -> None:
    if "skill" in kind:
        return  # A script says nothing of the kind: its exit code is a result.
    with Case(tmp_path, kind, True, hangs=False) as case:
        case.settle("refuse")
        [output] = case.harness.outputs
        assert "paid" in output
        # These are two calls, each with a key of its own.
        keys = case.shop.paid
        assert len(keys) == 2
        assert len(set(keys)) == (1 if kind == "whole: agent" else 2)


class Crash(Faults):
    """Loses the first record after the tool has paid."""

    def __init__(self) -> None:
        self.shop: Shop | None = None
        self.crashed = False
        super().__init__(self._decide)

    def _decide(self, *at: Any) -> Fault | None:
        if self.crashed or self.shop is None or not self.shop.paid:
            return None
        self.crashed = True
        return Fault.REFUSED


@each_case("again", [None, True])
@each_case("kind", KINDS)
def test_a_call_is_made_again_with_its_key_when_the_worker_died(
    tmp_path: Path, kind: str, again: bool | None
) -> None:
    crash = Crash()
    with Case(tmp_path, kind, again, hangs=False, store=crash.store) as case:
        crash.shop = case.shop
        snapshot = case.harness.snapshot()
        case.shop.make_trouble("none")
        with pytest.raises(StoreError):
            case.harness.push("go")
        case.harness.restore(snapshot)
        [output] = case.harness.push("go")
        assert "paid" in output
        assert (len(case.shop.paid), len(set(case.shop.paid))) == (2, 1)
        if kind in KEYED or (again and kind not in ("whole: agent", "skill", "whole: skill")):
            assert len(case.shop.paid[0]) == 32


@each_case("kind", [kind for kind in KINDS if "skill" not in kind and kind not in KEYED])
def test_a_call_is_not_made_again_if_the_tool_says_so_when_the_worker_died(tmp_path: Path, kind: str) -> None:
    crash = Crash()
    with Case(tmp_path, kind, False, hangs=False, store=crash.store) as case:
        crash.shop = case.shop
        snapshot = case.harness.snapshot()
        case.shop.make_trouble("none")
        with pytest.raises(StoreError):
            case.harness.push("go")
        case.harness.restore(snapshot)
        case.harness.push("go")
        case.check_unknown()


@factors(strength=1, kind=KINDS, approved=[True, False])
def test_a_person_decides_instead(tmp_path: Path, kind: str, approved: bool) -> None:
    with Case(tmp_path, kind, unknown="ask") as case:
        case.settle("hang")
        [request] = case.harness.approvals
        assert request.what.startswith("repeat tool ")
        assert len(case.shop.paid) == 1
        outputs = case.harness.approve(request) if approved else case.harness.deny(request, "it was paid")
        [output] = outputs
        if approved:
            assert "paid" in output
            assert (len(case.shop.paid), len(set(case.shop.paid))) == (2, 1)
        else:
            assert "it was paid" in output
            assert len(case.shop.paid) == 1
