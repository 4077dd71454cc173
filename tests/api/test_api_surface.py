"""The public names, and that importing them needs neither PyFlink nor a JVM."""

from __future__ import annotations

import subprocess
import sys

import flink_agents

PUBLIC = """
NOT_DONE Agent AgentOptions AgentsError AgentsExecutionEnvironment ChatMessage ConfigOption
Configuration DeadLetter DurableCallable Event EventTime FailedAttempt InputEvent MemoryObject
MemoryRef MemoryScope NamedEvent OnError OnMismatch OutputEvent Prompt RateLimit ResourceDescriptor
ResourceRef ResourceType RetryPolicy RetryableError RunnerContext TerminalError Tool action
chat_model_connection chat_model_setup client embedding_model_connection embedding_model_setup
mcp_server prompt tool vector_store
""".split()


def test_public_names_are_these() -> None:
    assert flink_agents.__all__ == PUBLIC
    assert [name for name in PUBLIC if not hasattr(flink_agents, name)] == []


def test_nothing_else_is_public() -> None:
    modules = {"api", "cli", "connectors", "plan", "runtime", "testing"}
    names = {name for name in vars(flink_agents) if name.isidentifier() and not name.startswith("_")}
    assert names - modules == set(PUBLIC)


def test_public_names_are_documented() -> None:
    undocumented = [
        name
        for name in PUBLIC
        if callable(getattr(flink_agents, name))
        and isinstance(getattr(flink_agents, name), type)
        and not getattr(flink_agents, name).__doc__
    ]
    assert undocumented == []


def test_api_and_test_kit_load_without_pyflink() -> None:
    code = (
        "import sys, flink_agents, flink_agents.plan, flink_agents.testing;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'pyflink', 'apache_beam', 'pemja'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
