"""Where PyFlink is not as it is known, the job fails by an error that names the supported releases."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents.api.errors import UnsupportedExecutionError
from flink_agents.runtime.flink.internals import java_objects
from flink_agents.runtime.flink.internals.access import OperatorAccess


class Context:
    """A runtime context without the parts that the operator uses."""


class Backend:
    """Stands for PyFlink's backend around one of Java of an unknown class."""

    class _Java:
        def getClass(self) -> Any:
            return self

        def getName(self) -> str:
            return "org.example.BatchExecutionKeyedStateBackend"

    _function_context = object()
    _keyed_state_backend = _Java()


class Raising:
    """A runtime context of another release, which raises something else."""

    @property
    def _keyed_state_backend(self) -> Any:
        raise TypeError("moved")


def rejection(context: Any) -> UnsupportedExecutionError:
    with pytest.raises(UnsupportedExecutionError) as failure:
        OperatorAccess(object(), context, {})
    return failure.value


def test_a_missing_part_is_named_with_the_supported_releases() -> None:
    error = rejection(Context())
    assert (error.code, error.found) == ("FA2004", "Context has no _keyed_state_backend")
    assert error.expected == "PyFlink and Flink 2.3.*"
    assert "apache-flink 2.3.*" in str(error.fix)


def test_whatever_another_release_raises_is_the_same_error() -> None:
    error = rejection(Raising())
    assert (error.code, error.found) == ("FA2004", "TypeError: moved")


def test_another_version_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_objects, "pyflink_version", "2.4.0")
    assert rejection(Context()).found == "PyFlink 2.4.0"


def test_an_unknown_backend_is_not_trusted() -> None:
    context: Any = Context()
    context._keyed_state_backend = Backend()
    error = rejection(context)
    assert error.found == "org.example.BatchExecutionKeyedStateBackend"
    assert "state.backend.type" in str(error.fix)


def test_the_operation_is_that_of_the_caller() -> None:
    with pytest.raises(UnsupportedExecutionError, match="has opened the function"):
        java_objects.find_caller(Context)
