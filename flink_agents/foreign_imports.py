"""Prepares the import of a module without importing it: PyFlink's modules import slowly."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from typing_extensions import override

Then = Callable[[Any], None]
"""A function that gets the module; may be called again."""


def when_imported(
    name: str, then: Then, around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> None:
    """Call a function with a module: now if it is imported, otherwise after each import of it.

    Args:
        name: Full name of the module.
        then: The function.
        around: Returns the context in which the code of the module is executed.
    """
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then, around))


def import_quietly(*names: str) -> None:
    """Suppress warnings while the named packages are imported, whenever that happens.

    They import modules by deprecated names, some of them within ``try``. With ``-W error``, that would fail.
    """
    for name in names:
        when_imported(name, lambda _: None)


class _Finder(MetaPathFinder):
    """A finder on ``sys.meta_path`` that calls a function after the import of a module.

    Args:
        name: Full name of the module.
        then: The function.
        around: Returns the context in which the code of the module is executed.
    """

    def __init__(self, name: str, then: Then, around: Callable[[], AbstractContextManager[None]]) -> None:
        self.name = name
        self._then = then
        self._around = around

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module, with a loader that calls the function; None for other modules."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute: Callable[[ModuleType], None] = loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                with self._around(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    execute(module)
                self._then(module)

            loader.exec_module = execute_and_tell
        return spec
