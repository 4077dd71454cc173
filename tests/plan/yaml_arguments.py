"""Agents whose constructors take one argument of each type."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action


class Keeping(Agent):
    value: Any

    @action(InputEvent)
    def show(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=repr(self.value))


TYPES: dict[str, Any] = {
    "Any": Any,
    "str": str,
    "bytes": bytes,
    "date": date,
    "datetime": datetime,
    "time": time,
    "timedelta": timedelta,
    "maybe_date": date | None,
    "texts": list[str],
    "dates": list[date],
    "set_of_texts": set[str],
    "by_name": dict[str, date],
    "by_date": dict[date, int],
    "json": dict[str, Any],
}


def _agent_with(kind: Any) -> type[Keeping]:
    class KeepingOne(Keeping):
        def __init__(self, value: Any) -> None:
            self.value = value

    return KeepingOne


for _name, _kind in TYPES.items():
    _agent = _agent_with(_kind)
    _agent.__qualname__ = _agent.__name__ = f"Keeping_{_name}"
    _agent.__init__.__annotations__["value"] = _kind
    globals()[_agent.__name__] = _agent
