"""The public names, and that importing them needs neither PyFlink nor a JVM."""

from __future__ import annotations

import subprocess
import sys

import flink_agents

PUBLIC = """
NOT_DONE Agent AgentOptions AgentsError AgentsExecutionEnvironment ApprovalDeniedEvent ApprovalOutcome
ApprovalRequest ApprovalResponse AgentCallEvent CallResult ChatMessage ChatModel
ChatModelConnection ChatRequestEvent ChatResponseEvent ChatResult ChatUsage ConfigOption Configuration
ContextRetrievalRequestEvent ContextRetrievalResponseEvent
ConversationHistory DeadLetter DeclaredResource Document DocumentUpdate DurableCallable Event EventTime
FailedAttempt InputEvent
MCPServer MemoryObject MemoryRef MemoryScope NamedEvent OnError OnMismatch OnSuspend OnToolError OutputEvent
OutputMode Prompt RateLimit ReActAgent RequestedCall ResourceDescriptor ResourceProvider ResourceRef
ResourceType RetryPolicy RetryableError RouteRule Router RunObserver RunnerContext Secret Signal
UnmatchedReason UnmatchedSignal Summary Skills TerminalError Tool ToolRequestEvent ToolResponseEvent
UsageLimits
action chat_model chat_model_connection client embedding_model long_term_memory mcp_server prompt
resource skills tool upgrades vector_store
""".split()


def test_public_names_are_these() -> None:
    assert flink_agents.__all__ == PUBLIC
    assert [name for name in PUBLIC if not hasattr(flink_agents, name)] == []


def test_nothing_else_is_public() -> None:
    modules = {
        "api",
        "cli",
        "connectors",
        "models",
        "plan",
        "runtime",
        "testing",
        "trace",
        "ui",
        "built_in",
        "foreign_imports",
        "kafka_clients",
        "redaction",
        "sqlite_files",
    }
    names = {name for name in vars(flink_agents) if name.isidentifier() and not name.startswith("_")}
    # These are there once somebody has named them.
    assert names - modules - {"TYPE_CHECKING", "Any"} | {"AgentsExecutionEnvironment", "ReActAgent"} == set(
        PUBLIC
    )


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


def test_the_import_changes_nothing() -> None:
    """Of what a process shares; importing PyFlink later is as if nobody had imported this package."""
    code = """
import gc, os, signal, sys, threading, warnings
def state():
    return {
        "meta path": list(map(repr, sys.meta_path)), "path hooks": list(map(repr, sys.path_hooks)),
        "path": list(sys.path), "environment": dict(os.environ), "threads": threading.enumerate(),
        "collection": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count(), len(gc.callbacks)),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.getswitchinterval()),
        "signals": [signal.getsignal(one) for one in signal.valid_signals()],
    }
before = state()
import flink_agents
after = state()
print([name for name in before if before[name] != after[name]])
print("pyflink" in sys.modules or "flink_agents.runtime" in sys.modules)
from flink_agents import AgentsExecutionEnvironment
print(len(sys.meta_path) - len(before["meta path"]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # It waits for the imports of five modules of PyFlink.
    assert run.stdout.split("\n")[:3] == ["[]", "False", "5"]
