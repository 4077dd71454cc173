"""Answers with fields of every type that Pydantic has: none fails after the request was paid."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path
from re import Pattern
from typing import Any, Generic, TypeVar
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    ByteSize,
    EmailStr,
    HttpUrl,
    IPvAnyAddress,
    NameEmail,
    PostgresDsn,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
)
from pydantic.dataclasses import dataclass

from flink_agents import Agent, ChatModel, Event, InputEvent, OutputEvent, ReActAgent, RunnerContext, action
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall
from tests.suite.tables import each_case

SCRIPT: list[ScriptedModel] = []
T = TypeVar("T")


def scripted() -> ScriptedModel:
    return SCRIPT[0]


MODEL = ChatModel(clazz=scripted)

FIELDS: dict[str, tuple[Any, Any]] = {
    "url": (HttpUrl, "http://a.b/c?d=é"),
    "any url": (AnyUrl, "mailto:a@b.de"),
    "database": (PostgresDsn, "postgres://a:b@c:1,d:2/e"),
    "path": (Path, "/a/b"),
    "ipv4": (IPv4Address, "1.2.3.4"),
    "ipv6": (IPv6Network, "2001:db8::/32"),
    "either": (IPvAnyAddress, "::1"),
    "secret": (SecretStr, "hidden"),
    "secret bytes": (SecretBytes, "hidden"),
    "secret number": (Secret[int], 3),
    "deque": (deque[int], [1, 2]),
    "defaultdict": (defaultdict[str, list[int]], {"a": [1]}),
    "ordered": (OrderedDict[str, int], {"b": 1, "a": 2}),
    "counter": (Counter[str], {"a": 2}),
    "fraction": (Fraction, "1/3"),
    "complex": (complex, "1+2j"),
    "pattern": (Pattern[str], "a+"),
    "zone": (ZoneInfo, "Europe/Berlin"),
    "size": (ByteSize, "3MB"),
    "mail": (EmailStr, "a@b.de"),
    "named mail": (NameEmail, "a <a@b.de>"),
    "optional": (list[HttpUrl | None], ["http://a.b", None]),
}


class Of(BaseModel, Generic[T]):
    field: T
    private: dict[str, T] = {}


@dataclass
class Site:
    url: HttpUrl
    ports: deque[int]


class Checked(Event):
    answer: Any


class Asks(Agent):
    """Keeps an answer in memory, sends it, and records it."""

    def __init__(self) -> None:
        super().__init__()
        self.add_resource("main", "chat_model", MODEL)

    @action(InputEvent)
    async def ask(self, event: InputEvent[str], ctx: RunnerContext) -> Checked:
        answer = (await ctx.chat("main", "?", output_type=kind_of(event.input))).output
        ctx.short_term_memory.set("answer", answer)
        return Checked(answer=answer)

    @action(Checked)
    async def check(self, event: Checked, ctx: RunnerContext) -> OutputEvent:
        again = await ctx.durable_execute_async(returns, event.answer)
        assert again == event.answer == ctx.short_term_memory.get("answer")
        return OutputEvent(output=again)


def returns(value: Any) -> Any:
    return value


def kind_of(name: str) -> Any:
    return Site if name == "dataclass" else Of[FIELDS[name][0]]


@each_case("name", [*FIELDS, "dataclass"])
def test_an_answer_is_kept_sent_and_recorded(name: str) -> None:
    content: Any = {"url": "http://a", "ports": [1]} if name == "dataclass" else {"field": FIELDS[name][1]}
    SCRIPT[:] = [ScriptedModel([ToolCall("final_result", content)])]
    with OperatorHarness(Asks, crash="everywhere") as harness:
        (answer,) = harness.push(name)
    expected = TypeAdapter(kind_of(name)).validate_python(content)
    assert answer == expected and type(answer) is type(expected)
    assert name == "dataclass" or type(answer.field) is type(expected.field)
    SCRIPT[0].assert_complete()


@pytest.mark.nightly
@each_case("name", FIELDS)
def test_a_react_agent_puts_it_out(name: str) -> None:
    SCRIPT[:] = [ScriptedModel([ToolCall("final_result", {"field": FIELDS[name][1]})])]
    with OperatorHarness(ReActAgent(model=MODEL, output_type=kind_of(name)), crash="everywhere") as harness:
        (answer,) = harness.push("?")
    assert answer == kind_of(name)(field=FIELDS[name][1])
