"""What the operator does where PyFlink is not as it is known: go by the public way, and say why."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from flink_agents.runtime.flink.fast import internals
from flink_agents.runtime.flink.fast.access import OperatorAccess


class Context:
    """A runtime context without what the fast path looks for."""


class Backend:
    """Stands for PyFlink's backend around one of Java of an unknown class."""

    class _Java:
        def getClass(self) -> Any:
            return self

        def getName(self) -> str:
            return "org.example.BatchExecutionKeyedStateBackend"

    _function_context = object()
    _keyed_state_backend = _Java()


def access(context: Any, fast: bool = True) -> OperatorAccess:
    return OperatorAccess(object(), context, {}, fast, "a")


@pytest.mark.parametrize("fast", [True, False])
def test_missing_parts_are_told_once_each(caplog: pytest.LogCaptureFixture, fast: bool) -> None:
    caplog.set_level(logging.WARNING)
    parts = access(Context(), fast)
    assert (parts.keys, parts.timers, parts.collector, parts.fast_path) == (None, None, None, None)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "agent a: Context has no _keyed_state_backend"
    ] * 2


def test_another_version_is_not_trusted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(internals, "pyflink_version", "2.4.0")
    assert access(Context()).keys is None
    assert "PyFlink is 2.4.0" in caplog.text


def test_an_unknown_backend_is_not_trusted(caplog: pytest.LogCaptureFixture) -> None:
    context: Any = Context()
    context._keyed_state_backend = Backend()
    caplog.set_level(logging.WARNING)
    assert access(context).keys is None
    assert "BatchExecutionKeyedStateBackend" in caplog.text


def test_the_operation_is_that_of_the_caller() -> None:
    with pytest.raises(internals.Unfit, match="has opened the function"):
        internals.find_caller(Context)
