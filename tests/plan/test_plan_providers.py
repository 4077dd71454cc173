"""Kinds of resources that a distribution provides: found by name in decorator, builder and YAML."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import flink_agents
from flink_agents import Agent, InputEvent, ResourceDescriptor, ResourceType, action, resource, tool
from flink_agents.api.errors import (
    AgentDefinitionError,
    AgentsError,
    PlanFormatError,
    ResourceUnavailableError,
)
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent, compile_with_code, load_yaml
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

PROVIDER = """
from flink_agents import DeclaredResource, ResourceProvider

class Features(ResourceProvider):
    def check(self, name, arguments):
        if "table" not in arguments:
            raise ValueError(f"{name} names no table")

    def provide(self, declared: DeclaredResource):
        return declared.name, dict(declared.arguments), declared.get("double", "tool")(2)

class Nothing:
    pass
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a distribution that provides ``their_features``."""
    (tmp_path / "their_provider.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_provider", raising=False)

    def install(provider: str = "their_provider:Features", name: str = "theirs") -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        points = f"[flink_agents.resource_providers]\ntheir_features = {provider}\n"
        (info / "entry_points.txt").write_text(points)

    return install


@pytest.fixture(autouse=True)
def forget_the_kind() -> Any:
    """A kind that was named stays known in a process; tests begin without it."""
    yield
    ResourceType._value2member_map_.pop("their_features", None)


def read(event: Any, ctx: Any) -> Any:
    return flink_agents.OutputEvent(output=ctx.get_resource("prices", "their_features"))


def double(number: int) -> int:
    """Twice."""
    return 2 * number


def decorated() -> Agent:
    class Reads(Agent):
        @action(InputEvent)
        def read(self, event: Any, ctx: Any) -> Any:
            return read(event, ctx)

        @resource("their_features", name="prices")
        def features(self) -> ResourceDescriptor:
            return ResourceDescriptor(table="prices", depth=3)

        @tool(name="double")
        @staticmethod
        def twice(number: int) -> int:
            return double(number)

    return Reads()


def built() -> Agent:
    agent = Agent(name="Reads").add_action("read", InputEvent, read).add_resource("double", "tool", double)
    return agent.add_resource("prices", "their_features", ResourceDescriptor(table="prices", depth=3))


YAML = f"""
agents:
  - name: Reads
    actions:
      - {{name: read, triggers: [_input_event], function: "{__name__}:read"}}
    tools:
      - {{name: double, function: "{__name__}:double"}}
    resources:
      - {{name: prices, type: their_features, arguments: {{table: prices, depth: 3}}}}
"""


def from_yaml(tmp_path: Path) -> Agent:
    (tmp_path / "agents.yaml").write_text(YAML)
    return load_yaml(tmp_path / "agents.yaml")["Reads"]


@pytest.mark.parametrize("form", ["decorator", "builder", "yaml"])
def test_a_provider_that_is_installed_is_found_by_name(
    install: Callable[..., None], tmp_path: Path, form: str
) -> None:
    install()
    agent = {"decorator": decorated, "builder": built, "yaml": lambda: from_yaml(tmp_path)}[form]()
    with OperatorHarness(agent) as harness:
        assert harness.push(1) == [("prices", {"table": "prices", "depth": 3}, 4)]
    plan = AgentPlan.from_json(compile_agent(agent).to_json())
    assert {plan_resource["type"] for plan_resource in json.loads(plan.to_json())["resources"]} == {
        "their_features",
        "tool",
    }
    code = cloudpickle.loads(cloudpickle.dumps(compile_with_code(agent)[1]))
    bound: LoadedAgent = LoadedAgent(plan, code)
    first = bound.resource("prices", "their_features")
    assert first == ("prices", {"table": "prices", "depth": 3}, 4)
    assert bound.resource("prices", ResourceType("their_features")) is first


@each_case("make", [decorated, built])
def test_a_kind_that_nothing_provides_names_what_to_install(make: Callable[[], Agent]) -> None:
    with pytest.raises(AgentDefinitionError, match="'their_features' is not a type of resource") as caught:
        make()
    what = "a distribution with an entry point 'their_features' in the group flink_agents.resource_providers"
    assert caught.value.fix == f"install {what}"
    assert "test_plan_providers.py" in (caught.value.where or "")


def test_a_kind_that_nothing_provides_in_yaml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(PlanFormatError, match="install a distribution") as caught:
        from_yaml(tmp_path)
    assert (caught.value.where or "").endswith("agents.yaml:9")


def test_a_worker_without_the_provider_says_what_to_install(
    install: Callable[..., None], tmp_path: Path
) -> None:
    install()
    data = cloudpickle.dumps(compile_with_code(built())[1]), compile_agent(built()).to_json()
    for file in tmp_path.glob("*.dist-info/entry_points.txt"):
        file.write_text("")
    ResourceType._value2member_map_.pop("their_features")
    with pytest.raises(AgentsError, match="'their_features'"):
        LoadedAgent(AgentPlan.from_json(data[1]), cloudpickle.loads(data[0])).resource(
            "prices", "their_features"
        )


def test_arguments_are_checked_when_the_agent_is_compiled(install: Callable[..., None]) -> None:
    install()
    agent = Agent(name="Reads").add_action("read", InputEvent, read)
    agent.add_resource("prices", "their_features", ResourceDescriptor(depth=3))
    with pytest.raises(
        AgentDefinitionError, match="(?s)its provider rejects.*prices names no table"
    ) as caught:
        compile_agent(agent)
    assert "test_plan_providers.py" in (caught.value.where or "")


@pytest.mark.parametrize(
    ("provider", "text"),
    [
        ("their_provider:Nothing", "(?s)is invalid.*ResourceProvider"),
        ("their_provider:Missing", "cannot be imported"),
        ("missing_provider:Features", "(?s)cannot be imported.*missing_provider.*install its requirements"),
    ],
)
def test_a_provider_that_does_not_work(install: Callable[..., None], provider: str, text: str) -> None:
    install(provider)
    with pytest.raises(ResourceUnavailableError, match=text):
        compile_agent(built())


def test_two_distributions_with_one_kind(install: Callable[..., None]) -> None:
    install()
    install("other_provider:Features", "others")
    with pytest.raises(ResourceUnavailableError, match="(?s)several.*other_provider:Features"):
        compile_agent(built())
