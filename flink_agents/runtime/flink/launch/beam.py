"""Keeps Apache Beam, pandas and pyarrow out of processes that do not use them.

PyFlink imports Beam in the driver and in each worker, only to see if its compiled modules can be used
together with Beam's. That costs 150 MB and more than a second of CPU per process. Only process mode needs
Beam, which Flink uses for pandas functions and aggregates of tables. These import it themselves, and later.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from typing_extensions import override

from flink_agents.foreign_imports import when_imported

FUNCTIONS = "pyflink.fn_execution"
"""PyFlink's package of workers, whose import asks for Beam."""

_STREAMS = "pyflink.datastream.stream_execution_environment"
_COMPILED_IN_BEAM = ("coders/stream",)
_COMPILED_FOR_BEAM = ("beam/beam_operations_fast", "beam/beam_coder_impl_fast", "beam/beam_stream_fast")
_SWITCH = "PYFLINK_CYTHON_ENABLED"

WORKERS = Path(__file__).parent / "workers"
"""A directory for the ``PYTHONPATH`` of a JVM: its ``sitecustomize`` prepares the Python inside."""


def leave_out_beam() -> None:
    """Let PyFlink load without Beam in this process, whenever it does. Can be called again."""
    when_imported(FUNCTIONS, _set_switch, _without_beam)


def leave_out_loopback_server() -> None:
    """Let PyFlink start the server of process mode with the first table environment, which alone needs it."""
    when_imported(_STREAMS, _leave_to_tables)


def prepare_workers(environment: dict[str, str]) -> None:
    """Let the Python in a JVM load PyFlink without Beam.

    Args:
        environment: The environment of the process that becomes the JVM. It is changed.
    """
    entries = [str(WORKERS), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))


def _leave_to_tables(module: Any) -> None:
    module.StreamExecutionEnvironment._open = lambda environment: None


@contextmanager
def _without_beam() -> Iterator[None]:
    if "apache_beam" in sys.modules:
        yield
        return
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(refusal)


class _Refusal(MetaPathFinder):
    """Refuses the import of Beam, and of the modules of PyFlink that load it."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in ("apache_beam", f"{FUNCTIONS}.beam"):
            raise ImportError(f"{fullname} is imported when something uses it", name=fullname)
        return None


def _set_switch(module: Any) -> None:
    """Set PyFlink's flag that says if its compiled modules are used, without importing them."""
    if "apache_beam" not in sys.modules:
        module.PYFLINK_CYTHON_ENABLED = (
            bool(os.environ.get(_SWITCH, "true"))
            and f"{FUNCTIONS}.coder_impl_fast" in sys.modules
            and _has_compiled(importlib.util.find_spec("apache_beam"), _COMPILED_IN_BEAM)
            and _has_compiled(module.__spec__, _COMPILED_FOR_BEAM)
        )


def _has_compiled(package: ModuleSpec | None, modules: Sequence[str]) -> bool:
    """Return True if each of ``modules`` is a compiled file of a package, which is not imported for that."""
    if package is None:
        return False
    directory = Path((package.submodule_search_locations or [""])[0])
    return all(
        any((directory / f"{module}{suffix}").exists() for suffix in EXTENSION_SUFFIXES) for module in modules
    )
