"""Prepares a Python worker of Flink once, when the first object of this package reaches it."""

from __future__ import annotations

import sys

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.shipping import main_classes, module_renewal
from flink_agents.runtime.flink.shipping.user_modules import MAIN


def prepare() -> None:
    """Make each operator that is loaded from now on find the modules of its own job."""
    flink_compat.watch_operators(_arrives, _loaded)


def _arrives(
    job_id: str, job_name: str, payload: bytes, announced: str | None
) -> tuple[set[str] | None, str | None]:
    names = module_renewal.operator_arrives(job_id, job_name, payload)
    if announced:
        main_classes.expect(sys.modules[MAIN], announced)
    return names, announced


def _loaded(arrived: tuple[set[str] | None, str | None] | None) -> None:
    names, announced = arrived or (None, None)
    module_renewal.operator_loaded(names)
    if announced:
        main_classes.settle(sys.modules[MAIN], announced)
