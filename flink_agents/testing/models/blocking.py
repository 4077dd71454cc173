"""Makes Pydantic AI reject requests to real models, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE = "pydantic_ai.models"


def block_requests() -> None:
    """Reject requests from now on; if Pydantic AI is not imported yet, from its import on."""
    module: Any = sys.modules.get(_MODULE)
    if module is not None:
        module.ALLOW_MODEL_REQUESTS = False
    elif not any(isinstance(finder, _Blocker) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Blocker())


@contextmanager
def requests_allowed() -> Iterator[None]:
    """Allow requests inside the block."""
    from pydantic_ai.models import override_allow_model_requests

    with override_allow_model_requests(True):
        yield


class _Blocker(MetaPathFinder):
    """Waits for the import of the module that holds the switch."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        # First: the call below asks all finders, and would come here again.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Switching(spec.loader)
        return spec


class _Switching(Loader):
    """Loads the module with its own loader, and then sets the switch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        vars(module)["ALLOW_MODEL_REQUESTS"] = False
