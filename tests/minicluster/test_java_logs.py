"""Python's records in a job: those that Flink's log would drop do not leave Python."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.runtime.flink.logs import follow_java, level_of
from tests.suite.tables import each_case

pytestmark = pytest.mark.minicluster


class Levels(Agent):
    """Says which level a worker's root logger has, as it is and after somebody has changed it."""

    @action(InputEvent)
    def look(self, event: InputEvent, ctx: Any) -> OutputEvent:
        root = logging.getLogger()
        seen = root.level
        mine = logging.NullHandler()
        try:
            return OutputEvent(output=(seen, *(self._after(root, *change) for change in self._changes(mine))))
        finally:
            root.removeHandler(mine)
            root.setLevel(seen)

    @staticmethod
    def _changes(mine: logging.Handler) -> list[tuple[int, list[logging.Handler]]]:
        return [(logging.DEBUG, []), (logging.DEBUG, [mine]), (logging.ERROR, [])]

    @staticmethod
    def _after(root: logging.Logger, level: int, handlers: list[logging.Handler]) -> int:
        root.setLevel(level)
        for handler in handlers:
            root.addHandler(handler)
        follow_java()
        for handler in handlers:
            root.removeHandler(handler)
        return root.level


class Java:
    """What a logger of SLF4J says whose lowest level has this place, from the lowest."""

    def __init__(self, lowest: int) -> None:
        self._lowest = lowest

    def __getattr__(self, name: str) -> Any:
        place = ["isDebugEnabled", "isInfoEnabled", "isWarnEnabled"].index(name)
        return lambda: place >= self._lowest


def test_a_worker_has_the_level_of_flinks_log(
    agents_environment: Callable[..., AgentsExecutionEnvironment],
) -> None:
    env = agents_environment()
    outputs = env.from_list([1], lambda number: number).apply(Levels).to_list()
    env.execute()
    assert list(outputs) == [(logging.INFO, logging.INFO, logging.DEBUG, logging.ERROR)]


@pytest.mark.parametrize(
    ("lowest", "level"), list(enumerate([logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]))
)
def test_levels_of_java(lowest: int, level: int) -> None:
    assert level_of(Java(lowest)) == level


class Written:
    """Keeps what a worker's log handler would pass to Java."""

    def __init__(self) -> None:
        self.records: list[tuple[object, ...]] = []

    def log(self, *arguments: object) -> None:
        self.records.append(arguments)


@each_case(
    "name, level, message, severity",
    [
        ("shop.orders", logging.WARNING, "paid", "WARN"),
        ("root", logging.INFO, "paid", "INFO"),
        ("flink_agents.durable", logging.CRITICAL, "paid", "CRITICAL"),
    ],
)
@each_case("fails", [False, True])
def test_records_have_the_names_of_their_loggers(
    name: str, level: int, message: str, severity: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyflinks: Any = ModuleType("pemja.logger")
    handler: Any = logging.Handler()
    handler._logger_writer = written = Written()
    pyflinks.python_log_handler = handler
    pyflinks._map_log_level = lambda level: (
        "WARN" if level == logging.WARNING else logging.getLevelName(level)
    )
    monkeypatch.setitem(sys.modules, "pemja.logger", pyflinks)
    follow_java()
    follow_java()
    error = ValueError("secret")
    record = logging.LogRecord(
        name, level, "/shop.py", 7, "%s", (message,), (type(error), error, None) if fails else None
    )
    # As of a logger of this package, which hides secrets in tracebacks.
    record.exc_text = "ValueError: ***" if fails else None
    pyflinks.python_log_handler.handle(record)
    text = f"{message}\nValueError: ***" if fails else message
    assert written.records == [(name, severity, text, None)]


def test_a_process_without_flink_keeps_its_level(caplog: pytest.LogCaptureFixture) -> None:
    assert "pemja.logger" not in sys.modules
    with caplog.at_level(logging.DEBUG):
        follow_java()
        assert logging.getLogger().level == logging.DEBUG
