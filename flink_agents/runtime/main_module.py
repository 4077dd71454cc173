"""Makes classes of the user's ``__main__`` known to the workers.

``python my_job.py`` defines its classes in a module that workers do not have. cloudpickle
ships such classes by value, but PyFlink moves records with plain pickle, which looks classes
up by name. A :class:`MainModule` inside a shipped function puts the classes where that look-up
finds them, as soon as the function is unpickled and so before its first record.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from flink_agents.runtime.jvm import in_flink_worker

_MAIN = "__main__"


class MainModule:
    """The classes of ``__main__``, installed in a worker when this object is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (_install, (_pickled_classes(),))


def _pickled_classes() -> dict[str, bytes]:
    module = sys.modules.get(_MAIN)
    classes = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == _MAIN
    }
    pickled: dict[str, bytes] = {}
    for name, value in classes.items():
        try:
            pickled[name] = cloudpickle.dumps(value)
        except Exception:
            continue
    return pickled


def _install(classes: dict[str, bytes]) -> MainModule:
    if in_flink_worker():
        # PyFlink is in every worker, and not needed for anything else here.
        importlib.import_module("flink_agents.runtime.worker").prepare()
        module = sys.modules[_MAIN]
        for name, data in classes.items():
            setattr(module, name, cloudpickle.loads(data))
    return MainModule()


class ShippedFunction:
    """A function that brings the user's ``__main__`` classes to the worker with it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.main = MainModule()
        self.function = function

    def __call__(self, value: Any) -> Any:
        """Call the function."""
        return self.function(value)
