"""Records which jobs of this process use which of the user's modules.

In thread mode, one interpreter serves all jobs of a TaskManager. A module can be dropped
only if no other running job has it. Each loaded operator has a :class:`Use`, which exists as
long as the thread in which PyFlink runs it, and as long as work of the attempt that outlives it.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

_local = threading.local()
_uses: set[Use] = set()
# Each change of a set is one operation of the interpreter, so a destructor may change them at any time.


@dataclass(eq=False)
class Use:
    """The modules that an operator uses.

    Attributes:
        job_id: Flink's id of its job; empty if it is not known.
        job_name: The job's name.
        modules: Names of modules; None if nothing is known about it.
        holders: Objects that keep the use alive.
    """

    job_id: str = ""
    job_name: str = ""
    modules: set[str] | None = None
    holders: set[Hashable] = field(default_factory=set)

    def add_modules(self, names: Iterable[str]) -> None:
        """Record that the operator uses these modules, and their packages."""
        modules = set(self.modules or ())
        for name in names:
            modules |= {name, *packages_of(name)}
        self.modules = modules

    @property
    def has_thread(self) -> bool:
        """True while PyFlink runs the operator."""
        return _THREAD in self.holders

    @property
    def job(self) -> str:
        """The displayed name of the job."""
        return f"{self.job_name!r} ({self.job_id})" if self.job_id else "with an unknown id"


class _Sentinel:
    """Is destroyed with the thread that created it."""

    def __init__(self, use: Use) -> None:
        self.use = use

    def __del__(self) -> None:
        self.use.holders.discard(_THREAD)


_THREAD = "thread"


def current_use() -> Use:
    """Return the use of the operator that this thread runs; the first call creates it."""
    sentinel = getattr(_local, "sentinel", None)
    if sentinel is None:
        use = Use(holders={_THREAD})
        _uses.add(use)
        sentinel = _local.sentinel = _Sentinel(use)
    return sentinel.use


def living_uses() -> list[Use]:
    """Return all uses that have not ended."""
    for use in list(_uses):
        if not use.holders:
            _uses.discard(use)
    return list(_uses)


def packages_of(name: str) -> list[str]:
    """Return the packages of a module, from the innermost."""
    packages: list[str] = []
    while name := name.rpartition(".")[0]:
        packages.append(name)
    return packages


def hold_use(holder: Any) -> Use:
    """Keep the use of this thread alive until ``holder`` releases it."""
    use = current_use()
    use.holders.add(id(holder))
    return use


def release_use(use: Use, holder: Any) -> None:
    """End a :func:`hold_use`."""
    use.holders.discard(id(holder))
