"""Code that only descriptions of resources name goes to the workers with the agent."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import cloudpickle
import pytest
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

from flink_agents import Agent, InputEvent, OutputEvent, ResourceDescriptor
from flink_agents.plan.binding.loaded import LoadedAgent
from flink_agents.plan.compile.compiler import compile_with_code
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck


def make_provider(**arguments: Any) -> OpenAIProvider:
    return OpenAIProvider(base_url="http://localhost:1", api_key="none")


def act(event: Any, ctx: Any) -> OutputEvent:
    return OutputEvent(output=event.input)


def agent_with(clazz: Any, **arguments: Any) -> Agent:
    agent = Agent(name="named").add_action("act", [InputEvent], act)
    return agent.add_resource("local", "chat_model_connection", ResourceDescriptor(clazz=clazz, **arguments))


def test_the_code_of_an_agent_has_what_descriptions_name() -> None:
    name = f"{__name__}:make_provider"
    _, code = compile_with_code(agent_with(name))
    assert dict(code.named) == {name: make_provider}
    check = CodeCheck.for_agent(code)
    assert __name__ in {module.name for module in check.modules}, "FA2005 does not look at it"


def test_texts_that_are_no_code_stay_texts() -> None:
    arguments = {
        "model": "openai:gpt-5",
        "url": "http://localhost:8080",
        "other": "json:loads",
        "gone": "a.b:c",
    }
    _, code = compile_with_code(agent_with("pydantic_ai.models.test:TestModel", **arguments))
    assert TestModel.__module__ in sys.modules
    assert not code.named


def test_a_worker_uses_what_came_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "make_provider", make_provider, raising=False)
    plan, code = compile_with_code(agent_with("__main__:make_provider"))
    shipped = cloudpickle.loads(cloudpickle.dumps(code))
    monkeypatch.delattr(main, "make_provider")
    provider = LoadedAgent(plan, shipped).resource("local", "chat_model_connection")
    assert isinstance(provider, OpenAIProvider)


def test_a_worker_without_the_module_cannot_load_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    _, code = compile_with_code(agent_with(f"{__name__}:make_provider"))
    module = type(sys)("module_of_the_driver")
    module.make = eval("lambda **arguments: None", vars(module))  # type: ignore[attr-defined]
    module.make.__module__ = module.__name__
    module.make.__qualname__ = "make"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    pickled = cloudpickle.dumps(replace(code, named={"module_of_the_driver:make": module.make}))
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(ModuleNotFoundError, match="module_of_the_driver"):
        cloudpickle.loads(pickled)
