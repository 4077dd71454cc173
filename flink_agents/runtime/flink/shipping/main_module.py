"""Makes classes of the user's ``__main__`` known to the workers.

``python my_job.py`` defines its classes in a module that workers do not have. cloudpickle
ships such classes by value, but PyFlink moves records with plain pickle, which looks classes
up by name. A :class:`MainModule` inside a shipped function puts the classes where that look-up
finds them, as soon as the function is unpickled and so before its first record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import cloudpickle

from flink_agents.api.durable.upgrades import all_upgrades, replace_upgrade
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.launch.gateway import refuse_in_worker
from flink_agents.runtime.flink.launch.jvm import in_flink_worker
from flink_agents.runtime.flink.shipping import main_classes, module_renewal
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck
from flink_agents.runtime.flink.shipping.main_classes import MainClass, classes_of, install_classes
from flink_agents.runtime.flink.shipping.user_modules import MAIN


class MainModule:
    """The classes of ``__main__``, installed in a worker when this object is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        classes = _shipped_classes()
        return (_unpickle_main, (classes, _shipped_upgrades()))


def _shipped_classes() -> dict[str, MainClass]:
    shipped: dict[str, MainClass] = {}
    for name, value in classes_of(sys.modules[MAIN]).items():
        try:
            shipped[name] = MainClass.from_class(value)
        except Exception:
            continue
    return shipped


def _shipped_upgrades() -> dict[str, bytes]:
    """Return the user's upgrade functions: of the main script by value, of other modules by name."""
    shipped: dict[str, bytes] = {}
    for name, upgrade in all_upgrades().items():
        with suppress(Exception):
            shipped[name] = cloudpickle.dumps(upgrade)
    return shipped


def _unpickle_main(classes: dict[str, MainClass], upgrades: dict[str, bytes] | None = None) -> MainModule:
    if in_flink_worker():
        _prepare_worker()
        install_classes(sys.modules[MAIN], classes)
        for name, upgrade in (upgrades or {}).items():
            # If the worker lacks a module, the code that needs it fails, and names it.
            with suppress(Exception):
                replace_upgrade(name, cloudpickle.loads(upgrade))
    return MainModule()


class ShippedFunction:
    """A function that brings the user's ``__main__`` classes to the worker with it.

    Args:
        function: The function.
        uses: Functions and classes of the user inside it, whose modules are compared on the worker.
    """

    def __init__(self, function: Callable[[Any], Any], uses: Iterable[Any] = ()) -> None:
        # Unpickled in this order: the function may need the first two.
        self.code_check = CodeCheck.of_values(uses)
        self.main = MainModule()
        self.function = function

    def __call__(self, value: Any) -> Any:
        """Call the function."""
        return self.function(value)


def _prepare_worker() -> None:
    """Make each operator that is loaded from now on find the modules of its job, and start no JVM."""
    refuse_in_worker()
    flink_compat.watch_operators(_unpickle_operator, _note_loaded)


def _unpickle_operator(
    job_id: str, job_name: str, payload: bytes, announced: str | None
) -> tuple[set[str] | None, str | None]:
    names = module_renewal.operator_arrives(job_id, job_name, payload)
    if announced:
        main_classes.expect_classes(sys.modules[MAIN], announced)
    return names, announced


def _note_loaded(arrived: tuple[set[str] | None, str | None] | None) -> None:
    names, announced = arrived or (None, None)
    module_renewal.operator_loaded(names)
    if announced:
        main_classes.install_late(sys.modules[MAIN], announced)
