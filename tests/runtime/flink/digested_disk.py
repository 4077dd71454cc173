"""Modules on disk that change while a test runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flink_agents.runtime.flink.shipping.code_digest import (
    CodeCheck,
    interpreter_name,
    modules_used,
)

NAME = "digested_shop"


class Disk:
    """Directories with modules, each imported from a directory of its own."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._patch = patch

    def load(self, source: str, name: str = NAME, place: str = "a") -> ModuleType:
        """Import a module that is written anew."""
        return self.load_all({name: source}, place)[name]

    def load_all(self, sources: dict[str, str], place: str = "a") -> dict[str, ModuleType]:
        directory = self._root / place
        for name, source in sources.items():
            file = directory / Path(*name.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
            self._patch.delitem(sys.modules, name, raising=False)
        self._patch.syspath_prepend(str(directory))
        return {name: importlib.import_module(name) for name in sources}


def check_of(*names: str) -> CodeCheck:
    return CodeCheck(interpreter_name(), tuple(modules_used(names)))
