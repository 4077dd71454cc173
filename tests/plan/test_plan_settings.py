"""Retries, timeouts, limits and clients in plans: JSON, YAML, fingerprint, what ``plan show`` says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import cloudpickle
import pytest
from pydantic import Field, ValidationError

from flink_agents import Agent, InputEvent, OnError, RateLimit, RetryPolicy, Tool, action, client, tool
from flink_agents.api.errors import (
    AgentDefinitionError,
    FunctionReferenceError,
    PlanFormatError,
    ResourceNotFoundError,
)
from flink_agents.api.settings import (
    ActionOptions,
    ActionSettings,
    ApprovedLimits,
    LimitOptions,
    PlainSettings,
    ToolLimits,
    ToolOptions,
    ToolSettings,
    settings_of,
)
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent, compile_with_code, load_yaml
from flink_agents.plan.files.yaml import ActionEntry
from flink_agents.plan.model import ActionPlan, RetryPlan
from flink_agents.plan.show import to_text
from tests.suite.tables import each_case

GOLDEN = Path(__file__).with_name("golden_plan_v1.json")


class Refused(Exception):
    pass


POLICY = RetryPolicy(
    initial_interval=0.5,
    factor=3,
    max_interval=20,
    jitter=0,
    max_attempts=None,
    max_duration=90,
    retry_on=(OSError, Refused),
    non_retryable=(FileNotFoundError,),
)


class Careful(Agent):
    """Every setting that there is."""

    retry = RetryPolicy(max_attempts=2)

    @action(InputEvent, retry=POLICY, timeout=timedelta(minutes=1), max_concurrency=4)
    async def call(self, event: Any, ctx: Any) -> None: ...

    @action(InputEvent, blocking=True, rate_limit=RateLimit(10, per=2))
    def read(self, event: Any, ctx: Any) -> None: ...

    @action(InputEvent, on_error="retry")
    def plain(self, event: Any, ctx: Any) -> None: ...

    @tool(name="look", max_concurrency=2, rate_limit=RateLimit(5))
    @staticmethod
    def look_up(name: str) -> str:
        """Look it up."""
        return name

    @client
    async def http(self) -> AsyncIterator[str]:
        yield "client"


def through_json(agent: Any, with_code: bool) -> LoadedAgent:
    """``agent`` as a worker makes it."""
    plan = AgentPlan.from_json(compile_agent(agent).to_json())
    code = cloudpickle.loads(cloudpickle.dumps(compile_with_code(agent)[1])) if with_code else None
    return LoadedAgent(plan, code)


@each_case("with_code", [False, True])
def test_settings_reach_the_worker(with_code: bool) -> None:
    bound = through_json(Careful(), with_code)
    on_call, on_read, on_plain = bound.actions
    call = on_call.settings
    read = on_read.settings
    plain = on_plain.settings
    assert bound.settings.retry == RetryPolicy(max_attempts=2)
    assert call.retry == POLICY
    assert (call.timeout, call.max_concurrency, call.rate_limit, on_call.off_thread) == (60.0, 4, None, False)
    assert (read.retry, read.timeout, read.rate_limit) == (None, None, RateLimit(10, per=2))
    assert (on_read.off_thread, on_plain.off_thread) == (True, False)
    assert plain.on_error is OnError.RETRY
    look = bound.resource("look", "tool")
    assert (look.settings.max_concurrency, look.settings.rate_limit) == (2, RateLimit(5))
    assert bound.clients.keys() == {"http"}
    with pytest.raises(ResourceNotFoundError, match="'http'"):
        bound.client("htp")


def test_exceptions_are_written_by_name() -> None:
    plan = compile_agent(Careful)
    data = json.loads(plan.to_json())["actions"][0]["retry"]
    assert data["retry_on"] == ["builtins:OSError", f"{__name__}:Refused"]
    assert data["non_retryable"] == ["builtins:FileNotFoundError"]
    assert RetryPlan.from_policy(POLICY).policy() == POLICY


def test_exception_without_a_name_needs_the_code() -> None:
    class Local(Exception):
        pass

    class Trying(Agent):
        @action(InputEvent, retry=RetryPolicy(retry_on=(Local,)))
        def act(self, event: Any, ctx: Any) -> None: ...

    plan = AgentPlan.from_json(compile_agent(Trying).to_json())
    policy = LoadedAgent(plan, compile_with_code(Trying)[1]).actions[0].settings.retry
    assert policy is not None and policy.retry_on == (Local,)
    with pytest.raises(FunctionReferenceError):
        RetryPlan(retry_on=(f"{__name__}:test.<locals>.Local",)).policy()


@each_case("name", ["builtins:len", "builtins:int", "builtins:Nope", "no_such_module:X", "X"])
def test_what_is_no_exception(name: str) -> None:
    with pytest.raises(FunctionReferenceError):
        RetryPlan(non_retryable=(name,)).policy()


def test_settings_do_not_change_the_fingerprint() -> None:
    def act(event: Any, ctx: Any) -> None: ...

    bare, careful = (
        Agent(name="a").add_action("act", [InputEvent], act, **options)
        for options in ({}, {"retry": POLICY, "timeout": 3, "max_concurrency": 1, "blocking": True})
    )
    careful.retry = POLICY
    assert compile_agent(bare).fingerprint == compile_agent(careful).fingerprint


def test_plan_without_settings_still_loads() -> None:
    golden = AgentPlan.from_json(GOLDEN.read_bytes())
    data = json.loads(GOLDEN.read_text(encoding="utf-8"))
    new = {"retry", "timeout", "max_concurrency", "rate_limit", "blocking", "tags", "calls", "clients"}
    for part in (data, *data["actions"], *data["resources"]):
        for name in new & part.keys():
            del part[name]
    assert AgentPlan.from_json(json.dumps(data)) == golden
    assert AgentPlan.from_json(json.dumps(data)).fingerprint == golden.fingerprint


@each_case(
    ("field", "value"),
    [("timeout", 0), ("max_concurrency", 0), ("rate_limit", {"calls": 0}), ("rate_limit", {"call": 1})],
)
def test_settings_that_a_plan_cannot_have(field: str, value: Any) -> None:
    data = json.loads(compile_agent(Careful).to_json())
    data["actions"][0][field] = value
    with pytest.raises(PlanFormatError, match=f"actions.0.{field}"):
        AgentPlan.from_json(json.dumps(data))


@each_case(
    "values",
    [
        {"initial_interval": -1},
        {"factor": 0.5},
        {"jitter": 2},
        {"max_attempts": 0},
        {"max_interval": float("inf")},
        {"retry_on": (5,)},
        {"attempts": 3},
    ],
)
def test_policies_that_cannot_be(values: Any) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**values)


def test_blocking_async_action_is_refused() -> None:
    class Wrong(Agent):
        @action(InputEvent, blocking=True)
        async def act(self, event: Any, ctx: Any) -> None: ...

    with pytest.raises(AgentDefinitionError, match="async def, and so cannot be blocking"):
        compile_agent(Wrong)


@each_case(("attribute", "value"), [("retry", 3), ("retry", "always"), ("on_unhandled", "retry")])
def test_settings_that_an_agent_cannot_have(attribute: str, value: Any) -> None:
    agent = Careful()
    setattr(agent, attribute, value)
    with pytest.raises(AgentDefinitionError, match=attribute) as caught:
        compile_agent(agent)
    assert "test_plan_settings.py" in (caught.value.where or "")


def test_plan_show_tells_the_settings() -> None:
    lines = to_text(compile_agent(Careful)).split("\n")
    shown_lines = {" ".join(line.split()) for line in lines if line.startswith("  ")}
    assert shown_lines >= {
        "retry after 1 s, 2 attempts",
        "call InputEvent -> nothing (async; retry after 0.5 s, for 90 s; at most 4 at a time; timeout 60 s)",
        "read InputEvent -> nothing (at most 10 per 2 s; blocking)",
        "plain InputEvent -> nothing (on error retry)",
        "tool look (name) Look it up. (at most 2 at a time; at most 5 per 1 s)",
        "client http",
    }


def test_a_setting_is_declared_once_and_is_everywhere() -> None:
    plain = set(PlainSettings.model_fields)
    all_ = set(ActionSettings.model_fields)
    assert set(get_type_hints(ActionOptions)) == all_
    assert set(settings_of(ActionSettings)) == all_ - {"when"}
    assert ActionPlan.model_fields.keys() >= all_ and ActionEntry.model_fields.keys() >= all_
    assert all(ActionPlan.model_fields[name].description for name in plain)
    assert set(get_type_hints(LimitOptions)) == set(ApprovedLimits.model_fields)
    assert set(get_type_hints(ToolOptions)) == set(ToolSettings.model_fields) == set(ToolLimits.model_fields)


@each_case(("wrong", "near"), [("timout", "timeout"), ("emit", "emits"), ("confg", "config")])
def test_an_unknown_setting_is_told_with_the_place_and_a_near_one(wrong: str, near: str) -> None:
    options: Any = {wrong: 3}
    with pytest.raises(AgentDefinitionError, match=f"@action has no option {wrong!r}") as caught:
        action(InputEvent, **options)(act)
    assert caught.value.fix == f"did you mean {near!r}?"
    assert caught.value.found == f"{wrong}=3"
    assert "test_plan_settings.py" in (caught.value.where or "")


# -- YAML ----------------------------------------------------------------------------


def act(event: Any, ctx: Any) -> None: ...


def half(amount: float) -> float:
    """By two."""
    return amount / 2


@contextmanager
def connect() -> Iterator[str]:
    yield "connection"


WHOLE = f"""
agents:
  - name: Whole
    on_error: retry
    retry: {{max_attempts: 2}}
    actions:
      - name: act
        triggers: [_input_event]
        function: {__name__}:act
        retry:
          initial_interval: 0.5
          retry_on: [builtins:OSError, "{__name__}:Refused"]
        timeout: 2.5
        max_concurrency: 3
        rate_limit: {{calls: 10, per: 60}}
        blocking: true
    tools:
      - {{name: half, function: "{__name__}:half", max_concurrency: 1}}
    clients:
      - {{name: db, function: "{__name__}:connect"}}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the text into ``agents.yaml``, which is where we are."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = Path("agents.yaml")
        path.write_text(text.lstrip("\n"), encoding="utf-8")
        return path

    return write


def test_settings_in_yaml(write: Callable[[str], Path]) -> None:
    agent = load_yaml(write(WHOLE))["Whole"]
    assert (agent.on_error, agent.retry) == (OnError.RETRY, RetryPolicy(max_attempts=2))
    bound = through_json(agent, with_code=False)
    (action_,) = bound.actions
    settings = action_.settings
    assert settings.retry == RetryPolicy(initial_interval=0.5, retry_on=(OSError, Refused))
    assert (settings.timeout, settings.max_concurrency, settings.rate_limit) == (
        2.5,
        3,
        RateLimit(10, per=60),
    )
    assert action_.off_thread
    half_tool = bound.resource("half", "tool")
    assert isinstance(half_tool, Tool)
    assert (half_tool.settings.max_concurrency, half_tool.description) == (1, "By two.")
    assert bound.client("db") is connect


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("max_attempts: 2", "max_attempts: 0", 4),
        ("max_attempts: 2", "attempts: 2", 4),
        ("builtins:OSError", "builtins:OsError", 9),
        ("timeout: 2.5", "timeout: 0", 12),
        ("calls: 10", "calls: 0", 14),
        ("blocking: true", "blocking: perhaps", 15),
        (f"{__name__}:connect", f"{__name__}:conect", 19),
    ],
)
def test_wrong_settings_in_yaml_name_the_line(
    write: Callable[[str], Path], before: str, after: str, line: int
) -> None:
    with pytest.raises(AgentDefinitionError) as caught:
        load_yaml(write(WHOLE.replace(before, after)))
    assert (caught.value.where or "").startswith(f"agents.yaml:{line}")


class _LaterSettings(PlainSettings):
    """A setting for which 0 is a value, and None means that it is not set."""

    most: int | None = Field(default=None, ge=0)


def test_a_setting_that_counts_as_false_is_not_lost() -> None:
    """A check for a true value, where one for None is meant, would drop a limit of 0."""
    written = 0
    for kind in (PlainSettings, ToolLimits, _LaterSettings):
        for name, field in kind.model_fields.items():
            for value in (False, 0, 0.0, (), ""):
                try:
                    settings = kind.model_validate({name: value})
                except ValidationError:
                    continue
                text = settings.model_dump_json()
                assert getattr(kind.model_validate_json(text), name) == getattr(settings, name), (kind, name)
                if getattr(settings, name) is not field.default:
                    assert json.loads(text)[name] == value, (kind, name)
                    written += 1
    assert written


def test_a_tool_whose_calls_may_not_be_repeated_stays_so_in_its_plan() -> None:
    class Pays(Agent):
        @tool(idempotent=False)
        def pay(self, amount: int, idempotency_key: str) -> str:
            """Pay."""
            return idempotency_key

        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> None: ...

    plan = AgentPlan.from_json(compile_agent(Pays()).to_json())
    assert [
        tool_settings["idempotent"] for tool_settings in _named(json.loads(plan.to_json()), "idempotent")
    ] == [False]


def _named(value: Any, name: str) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value that has a field ``name``."""
    if isinstance(value, dict):
        if name in value:
            yield value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _named(inner, name)
