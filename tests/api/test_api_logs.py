"""What is logged is bounded, whatever foreign exceptions and values it names."""

from __future__ import annotations

import ast
import functools
import json
import logging
import pickle
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flink_agents
from flink_agents.api.common.logs import MAX_CHARACTERS, MAX_TRACEBACK, bound_text, bounded_logger
from flink_agents.api.common.policies import OnError
from tests.suite.tables import each_case

LONG = "x" * 1_000_000
LOG = bounded_logger("flink_agents.test_logs")


class Long:
    def __str__(self) -> str:
        return LONG

    __repr__ = __str__


class Unshowable(Exception):
    def __str__(self) -> str:
        raise ValueError(LONG)

    __repr__ = __str__


class LikeADictionary(UserDict[str, str], Exception):
    pass


def chained() -> Exception:
    try:
        try:
            raise ValueError(LONG)
        except ValueError as error:
            raise OSError(LONG) from error
    except OSError as error:
        return error


VALUES: dict[str, Any] = {
    "exception": ValueError(LONG),
    "exception with a value": KeyError(Long()),
    "chain": chained(),
    "group": ExceptionGroup("all", [ValueError(LONG)] * 20),
    "text": LONG,
    "bytes": LONG.encode(),
    "list": [LONG],
    "object": Long(),
    "number": 10**4000,
    "unshowable": Unshowable(),
    "like a dictionary": LikeADictionary(a=LONG),
    "dictionary": {"a": LONG},
    "class": type("Y" * 100_000, (), {}),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("text", ["%s", "%r", "key %r of %s: %s"])
def test_values_are_bounded(value: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    LOG.warning(text, *[value] * text.count("%"))
    # Threads of other tests may log, too.
    (record,) = (log_record for log_record in caplog.records if log_record.name == LOG.name)
    assert len(record.getMessage()) < 4 * MAX_CHARACTERS
    assert len(caplog.text) < 4 * MAX_CHARACTERS


@pytest.mark.parametrize(
    "value", [value for value in VALUES.values() if isinstance(value, Exception)], ids=type
)
def test_tracebacks_are_bounded(value: Exception, caplog: pytest.LogCaptureFixture) -> None:
    for log in (LOG.exception, lambda text: LOG.error(text, exc_info=value)):
        try:
            raise value
        except Exception:
            log("it failed")
    for record in caplog.records:
        assert len(caplog.handler.format(record)) < MAX_TRACEBACK + 1_000
        assert type(value).__name__ in caplog.handler.format(record)
        assert record.exc_info is not None and record.exc_info[1] is value


def test_what_is_short_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    LOG.warning("%s: %r after %d of %.2f s (%s)", ValueError("no"), "key", 3, 1.5, None)
    LOG.warning("100 %")
    LOG.warning("%s", {"a": 1})
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["no: 'key' after 3 of 1.50 s (None)", "100 %", "{'a': 1}"]


@each_case("text", ["it was %s", "it was %r"])
@each_case("name", [*VALUES, "none", "float", "integer", "bool", "enum", "path", "place"])
def test_handlers_may_write_arguments_as_they_are(
    name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain_values = {
        "float": 0.5,
        "integer": 7,
        "bool": True,
        "enum": OnError.FAIL,
        "path": Path("a"),
        "none": None,
    }
    value = (VALUES | plain_values).get(name, object())
    caplog.clear()
    LOG.warning(text, value)
    [record] = caplog.records
    assert isinstance(record.args, tuple)
    written = json.loads(json.dumps(record.args))
    assert pickle.loads(pickle.dumps(record.args)) == tuple(written)
    if text.endswith("%s"):
        assert record.getMessage() == text % tuple(written)


def test_both_ends_of_a_text_are_kept() -> None:
    text = bound_text("<" + LONG + ">", 100)
    assert text.startswith("<x") and text.endswith("x>") and "characters" in text and len(text) < 150
    assert bound_text("x" * 100, 100) == "x" * 100


@functools.cache
def sources() -> list[tuple[str, ast.Module]]:
    root = Path(flink_agents.__file__).parent
    files = sorted(root.rglob("*.py"))
    return [(str(file.relative_to(root)), ast.parse(file.read_text())) for file in files]


def calls(tree: ast.Module, name: str) -> list[str]:
    """The first arguments of calls of a method or function."""
    arguments: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (
            getattr(node.func, "attr", ""),
            getattr(node.func, "id", ""),
        ):
            arguments.append(ast.unparse(node.args[0]) if node.args else "")
    return arguments


def test_each_logger_of_the_package_is_bounded() -> None:
    plain = {file: calls(tree, "getLogger") for file, tree in sources()}
    # Another library's logger, whose level is set.
    assert {file: names for file, names in plain.items() if names} == {
        "api/common/logs.py": ["name"],
        "connectors/action_state/kafka/settings.py": ["'kafka'"],
        # A warning of Beam is left out, which no author can do anything about.
        "runtime/flink/environment.py": ["_FILE_SYSTEMS"],
        # Py4J's, of which thousands of lines are left out if the JVM dies.
        "runtime/flink/launch/gateway.py": ["'py4j.java_gateway'"],
        # Python's root logger, and that of Java.
        "runtime/flink/logs.py": ["", "'ROOT'"],
    }
    named = [name for _, tree in sources() for name in calls(tree, "bounded_logger")]
    assert len(named) > 10 and all(name.startswith("'flink_agents.") for name in named)


def test_no_logger_is_used_by_another_way() -> None:
    direct: Callable[[ast.AST], bool] = lambda node: (  # noqa: E731
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "logging"
        and node.func.attr
        in {level.lower() for level in logging.getLevelNamesMapping()} | {"exception", "log"}
    )
    assert [file for file, tree in sources() if any(map(direct, ast.walk(tree)))] == []
