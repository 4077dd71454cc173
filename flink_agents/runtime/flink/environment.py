"""``AgentsExecutionEnvironment`` on PyFlink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyflink.common import Configuration as FlinkConfiguration
from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment
from typing_extensions import override

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import authors_place
from flink_agents.api.environment import AgentInput, AgentsExecutionEnvironment
from flink_agents.api.errors import (
    JobDefinitionError,
    UnsupportedExecutionError,
    UnsupportedTableError,
)
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.api.tables import ON_CHANGE, OnChange
from flink_agents.plan.compile.literal_secrets import check_options
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.following.executions import at_users_line
from flink_agents.runtime.flink.inputs.given import (
    check_mode_of_tables,
    check_selector,
    check_stream,
    check_table,
    list_source,
)
from flink_agents.runtime.flink.internals import access
from flink_agents.runtime.flink.job import Job
from flink_agents.runtime.flink.launch import gateway
from flink_agents.runtime.flink.launch.gateway import separate_background_calls
from flink_agents.runtime.flink.launch.packages import check_conflicting_packages
from flink_agents.runtime.flink.streams import FlinkAgentInput
from flink_agents.runtime.flink.values.rows import Column, ReadRows, readers_of, with_wide_types
from flink_agents.runtime.flink.values.tables import read_rows, row_type_of

_FILE_SYSTEMS = "apache_beam.io.filesystems"
_EXECUTION_MODE = "python.execution-mode"
_BUFFER_TIMEOUT = "execution.buffer-timeout.interval"
_FLINKS_BUFFER_TIMEOUT_MS = 100
_SEVERAL_TIMES = "more than one rowtime attribute"
"""Flink's message for a table with several columns that carry watermarks."""


def create_environment(
    env: StreamExecutionEnvironment | None, t_env: Any, config: Mapping[str, Any] | None
) -> FlinkAgentsEnvironment:
    """Return the environment for ``AgentsExecutionEnvironment.get_execution_environment``.

    Args:
        env: PyFlink's environment; a new one if it is None.
        t_env: PyFlink's table environment; None to make one when a table is used.
        config: Options of the job, over those of Flink's configuration and the environment variables.
    """
    check_conflicting_packages()
    leave_out_file_systems()
    gateway.prepare_jvms()
    gateway.check_prepared()
    if env is None:
        env = StreamExecutionEnvironment.get_execution_environment(FlinkConfiguration())
    separate_background_calls()
    flink = flink_compat.configuration_of(env)
    options = Configuration.load(config, flink)
    check_options(options)
    _use_thread_mode(env, flink)
    _use_short_buffers(env, flink)
    return FlinkAgentsEnvironment(env, t_env, options)


def leave_out_file_systems() -> None:
    """Suppress Beam's warning about cloud file systems whose packages are only partly installed.

    PyFlink imports Beam, no job uses these file systems, and the warning would be the first line that you
    see.
    """
    logging.getLogger(_FILE_SYSTEMS).addFilter(_describes_more)


def _describes_more(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Failed to import ")


def _use_thread_mode(env: StreamExecutionEnvironment, flink: Mapping[str, str]) -> None:
    mode = flink.get(_EXECUTION_MODE)
    if mode is None:
        flink_compat.set_options(env, {_EXECUTION_MODE: "thread"})
    elif mode != "thread":
        raise UnsupportedExecutionError(
            f"{_EXECUTION_MODE} is {mode!r}",
            expected="thread",
            found=mode,
            fix=f"remove {_EXECUTION_MODE}: PyFlink's process mode loses records when a job with "
            "checkpoints fails (docs/design/pyflink.md)",
            where=authors_place(),
        )


def _use_short_buffers(env: StreamExecutionEnvironment, flink: Mapping[str, str]) -> None:
    """Forward records after 20 ms; by default, Flink holds each record for up to 100 ms in each direction.

    Operators in Python forward theirs earlier (:mod:`flink_agents.runtime.flink.internals.access`).
    """
    if _BUFFER_TIMEOUT not in flink and env.get_buffer_timeout() == _FLINKS_BUFFER_TIMEOUT_MS:
        env.set_buffer_timeout(access.BUFFER_TIMEOUT_MS)


class FlinkAgentsEnvironment(AgentsExecutionEnvironment):
    """The entry point around PyFlink's environment.

    Args:
        env: PyFlink's environment.
        t_env: PyFlink's table environment, made at its first use if it is None.
        config: The options.
    """

    def __init__(self, env: StreamExecutionEnvironment, t_env: Any, config: Configuration) -> None:
        self._job = Job(env, t_env, config)
        self._agents: dict[str, Agent] = {}

    @property
    @override
    def stream_env(self) -> StreamExecutionEnvironment:
        return self._job.stream_env

    @property
    @override
    def table_env(self) -> Any:
        return self._job.table_env

    @property
    @override
    def config(self) -> Configuration:
        return self._job.config

    # -- inputs -----------------------------------------------------------------------

    @override
    def from_datastream(
        self, stream: DataStream, key_selector: Callable[[Any], Any] | None = None
    ) -> AgentInput:
        check_stream("from_datastream", stream)
        selector = check_selector("from_datastream", key_selector)
        if isinstance(stream, KeyedStream):
            raise JobDefinitionError(
                "the stream is keyed already",
                fix="pass the stream before key_by, and the key selector here: agents key by a canonical "
                "form of the key",
                where=authors_place(),
            )
        return FlinkAgentInput(self._job, self._agents, stream, selector)

    @override
    def from_table(
        self,
        table: Any,
        key_selector: Callable[[Any], Any] | str | None = None,
        *,
        value: Any = None,
        changes: OnChange = "fail",
    ) -> AgentInput:
        check_table("from_table", table)
        check_mode_of_tables(table._t_env, authors_place())
        if isinstance(key_selector, str):
            selector: Callable[[Any], Any] = Column(key_selector)
        else:
            selector = check_selector("from_table", key_selector)
        row_type = row_type_of(table)
        readers = readers_of(row_type)
        stream = self._rows_of(with_wide_types(table, row_type), changes)
        read = ReadRows(readers, value, changes)
        rows = read_rows(stream, read, list(readers), [] if value is None else [value])
        return FlinkAgentInput(self._job, self._agents, rows, selector)

    def _rows_of(self, table: Any, changes: OnChange) -> DataStream:
        """Return the rows of a table, or its changes."""
        from pyflink.util.exceptions import TableException

        if changes not in ON_CHANGE:
            raise UnsupportedTableError(
                "unknown policy for a table that changes",
                expected=", ".join(map(repr, ON_CHANGE)),
                found=repr(changes),
                fix="correct changes=",
                where=authors_place(),
            )
        tables = self.table_env
        try:
            return tables.to_data_stream(table) if changes == "fail" else tables.to_changelog_stream(table)
        except TableException as error:
            raise _refused_table(str(error).split("\n", 1)[0]) from error

    @override
    def from_list(
        self, records: Iterable[Any], key_selector: Callable[[Any], Any] | None = None
    ) -> AgentInput:
        selector = check_selector("from_list", key_selector)
        at_hand = list(records)
        self._job.note_list(at_hand)
        checks = self.config.get(AgentOptions.CHECK_CODE)
        stream, source = list_source(self.stream_env, at_hand, checks)
        return FlinkAgentInput(self._job, self._agents, stream, selector, len(at_hand), source)

    @override
    def load_yaml(self, *paths: str | Path) -> FlinkAgentsEnvironment:
        from flink_agents.plan import load_yaml

        for path in paths:
            self._agents |= load_yaml(path)
        return self

    # -- running ----------------------------------------------------------------------

    @override
    def collect(self, stream: DataStream) -> list[Any]:
        return self._job.collect(check_stream("collect", stream))

    @override
    def add_check(self, check: Callable[[], None]) -> None:
        self._job.add_check(check)

    @override
    def execute(self, job_name: str | None = None) -> Any:
        return at_users_line(lambda: self._job.execute(job_name))


def _refused_table(message: str) -> UnsupportedTableError:
    """Describe a table that Flink cannot convert to a stream, from Flink's message."""
    if _SEVERAL_TIMES in message:
        return UnsupportedTableError(
            "the table has several columns with watermarks",
            expected="one, which becomes the event time of the inputs",
            found=message,
            fix="cast the others in the query: CAST(... AS TIMESTAMP(3))",
            where=authors_place(),
        )
    return UnsupportedTableError(
        "the table has updates or deletes",
        expected="an insert-only table",
        found=message,
        fix="choose a policy for them: from_table(..., changes='latest') or changes='all'; or pass a table "
        "without updating aggregation",
        where=authors_place(),
    )
