"""Checks Flink's runtime mode: agents run in streaming jobs only.

In batch mode, Flink handles one key after the other, and forgets the state of a key when the next one comes.
Runs on the event loop are not committed by then, so their outputs would be lost.
"""

from __future__ import annotations

from typing import Any

from pyflink.datastream import StreamExecutionEnvironment

from flink_agents.api.errors import UnsupportedExecutionError
from flink_agents.runtime.flink import compat as flink_compat

_RUNTIME_MODE = "execution.runtime-mode"
_STREAMING = "STREAMING"


def check_runtime_mode(env: StreamExecutionEnvironment, where: str | None) -> None:
    """Check that a job with agents does not run in batch mode.

    Raises:
        UnsupportedExecutionError: Flink would run it in batch mode.
    """
    mode = flink_compat.configuration_of(env).get(_RUNTIME_MODE, _STREAMING).upper()
    if mode != "AUTOMATIC" or flink_compat.is_bounded(env):
        _check(mode, where)


def check_mode_of_tables(tables: Any, where: str | None) -> None:
    """Check that a table environment, which has a mode of its own, does not run its jobs in batch mode.

    Raises:
        UnsupportedExecutionError: It runs them in batch mode.
    """
    _check(tables.get_config().get(_RUNTIME_MODE, _STREAMING).upper(), where)


def _check(mode: str, where: str | None) -> None:
    if mode != _STREAMING:
        raise UnsupportedExecutionError(
            f"{_RUNTIME_MODE} is {mode}, and agents do not run in batch mode",
            expected=f"{_STREAMING}, which also ends when bounded inputs end",
            found=mode,
            fix=f"remove {_RUNTIME_MODE}, set_runtime_mode(...) or in_batch_mode()",
            where=where,
        )
