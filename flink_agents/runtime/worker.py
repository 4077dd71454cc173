"""What happens once in each Python worker of Flink, with the first thing of this package that reaches it."""

from __future__ import annotations

from flink_agents.runtime import flink_compat, module_renewal


def prepare() -> None:
    """Have each operator that is loaded from now on find the modules of its own job."""
    flink_compat.watch_operators(module_renewal.operator_arrives, module_renewal.operator_loaded)
