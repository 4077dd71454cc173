"""Creates the recorder of a subtask from the options of its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors.trace import TraceOptionError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.api.settings.tracing import TRACE_SINKS, TraceLevel
from flink_agents.trace.recording.recorder import LeanRecorder, TracedSubtask, TraceRecorder
from flink_agents.trace.target import TraceSink, TraceTarget
from flink_agents.trace.writer import TraceWriter

_log = bounded_logger("flink_agents.trace")


def recorder_of(
    config: Configuration, subtask: TracedSubtask, on_drop: Callable[[int], None] = lambda _: None
) -> TraceRecorder | None:
    """Create the recorder of a subtask; return None if the level of the agent and all actions is ``off``.

    A sink that cannot be created is logged and skipped: a trace never fails the job.

    Args:
        config: Options of the job.
        subtask: The fields that all records share.
        on_drop: Called with the number of dropped records.
    """
    level, actions = levels_of(config, subtask.agent)
    if level is TraceLevel.OFF and all(action_level is TraceLevel.OFF for action_level in actions.values()):
        return None
    if level is TraceLevel.OFF:
        # The runs of the actions that are recorded.
        level = TraceLevel.RUNS
    target = TraceTarget(subtask.agent, subtask.subtask, config)
    sinks: dict[str, TraceSink] = {}
    for name in sink_names(config):
        try:
            sinks[name] = TRACE_SINKS.load(name)(target)
        except Exception as error:
            _log.warning("the trace sink %r cannot be used, and is left out: %s", name, error)
    writer = TraceWriter(sinks, config.get(AgentOptions.TRACE_QUEUE), on_drop)
    percent = config.get(AgentOptions.TRACE_SAMPLE)
    recorder_class = TraceRecorder if actions or level is not TraceLevel.RUNS else LeanRecorder
    return recorder_class(subtask, level, writer, actions, percent, config.get(AgentOptions.TRACE_CONTENT))


def levels_of(config: Configuration, agent: str) -> tuple[TraceLevel, dict[str, TraceLevel]]:
    """Return the level of an agent, and the levels of actions that have their own.

    Raises:
        TraceOptionError: A value is not a level.
    """
    levels = config.below("trace.levels")
    level: Any = levels.get(agent, config.get(AgentOptions.TRACE_LEVEL))
    prefix = f"{agent}."
    actions = {
        name.removeprefix(prefix): action_level
        for name, action_level in levels.items()
        if name.startswith(prefix)
    }
    return _parse_level(agent, level), {
        name: _parse_level(prefix + name, action_level) for name, action_level in actions.items()
    }


def check_trace_options(config: Configuration) -> None:
    """Check the options of the trace when a job is defined.

    Raises:
        TraceOptionError: A value is not a level.
        UnknownTraceSinkError: A sink has no provider.
    """
    for name, level in config.below("trace.levels").items():
        _parse_level(name, level)
    if config.get(AgentOptions.TRACE_LEVEL) is not TraceLevel.OFF or config.below("trace.levels"):
        for name in sink_names(config):
            TRACE_SINKS.find(name)


def writes_files(config: Configuration) -> bool:
    """Return True if a job writes files of its trace."""
    is_on = config.get(AgentOptions.TRACE_LEVEL) is not TraceLevel.OFF or bool(config.below("trace.levels"))
    return is_on and "jsonl" in sink_names(config)


def sink_names(config: Configuration) -> list[str]:
    """Return the names of the sinks, without duplicates."""
    names: str = config.get(AgentOptions.TRACE_SINKS)
    return list(dict.fromkeys(name for part in names.split(",") if (name := part.strip())))


def _parse_level(name: str, value: Any) -> TraceLevel:
    # YAML reads a bare `off` as False.
    value = "off" if value is False else value
    try:
        return TraceLevel(value)
    except ValueError as error:
        raise TraceOptionError(
            f"the option trace.levels.{name} is no level",
            expected=", ".join(TraceLevel),
            found=repr(value),
            fix=f"write for example trace.levels.{name}: calls",
        ) from error
