"""Options of Flink for local jobs, where its own defaults serve clusters."""

from __future__ import annotations

import socket

from pyflink.datastream import StreamExecutionEnvironment

from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.flink import compat as flink_compat

_RESTART_STRATEGY = "restart-strategy.type"
_REST_PORTS = "rest.bind-port"
_MANY_PORTS = 20


def bound_restarts(env: StreamExecutionEnvironment, config: Configuration) -> None:
    """Let a local job with checkpoints restart a few times; Flink's default is forever."""
    if _RESTART_STRATEGY not in flink_compat.configuration_of(env):
        delay = config.get(AgentOptions.RESTART_DELAY)
        settings = {
            _RESTART_STRATEGY: "fixed-delay",
            "restart-strategy.fixed-delay.attempts": str(config.get(AgentOptions.RESTART_ATTEMPTS)),
            "restart-strategy.fixed-delay.delay": f"{int(delay.total_seconds() * 1000)} ms",
        }
        flink_compat.set_options(env, settings)


def bound_rest_ports(env: StreamExecutionEnvironment) -> None:
    """Choose the REST port of a local job; Flink would take any port without reporting it."""
    if not flink_compat.configuration_of(env).keys() & {"rest.port", _REST_PORTS}:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            first = min(probe.getsockname()[1], 65535 - _MANY_PORTS)
        flink_compat.set_options(env, {_REST_PORTS: f"{first}-{first + _MANY_PORTS}"})
