"""Gives a job that arrives in this process its own version of the user's modules.

It happens twice: when the first operator of a job is loaded, everything whose file has changed is dropped, so
that PyFlink's functions find the job's modules as well; and when an agent arrives with the digests
of its modules, modules that differ are dropped. Modules that another running job uses always stay.
"""

from __future__ import annotations

import importlib
import pickletools
import sys
import threading
import time
from collections.abc import Collection, Iterable
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.flink.shipping import user_modules
from flink_agents.runtime.flink.shipping.user_modules import Use, packages_of

_log = bounded_logger("flink_agents.code")

lock = threading.RLock()
"""Held while memory is compared and changed."""

_KNOWN_JOBS = 10_000
_LARGEST_PAYLOAD = 4 << 20

WAIT_SECONDS = 10.0
"""Time that a job waits for work that outlives the threads of an ended job."""

_WAIT_FOR_THREADS = 0.1
"""The part of that time for threads: they end before Flink reports the end of their job."""

_POLL_SECONDS = 0.02

_known_jobs: dict[str, None] = {}
"""Jobs that have run here: their modules are compared with their own digests only."""


_loading: set[int] = set()
"""Threads that are loading operators; modules that are loaded meanwhile may be theirs."""


def operator_arrives(job_id: str, job_name: str, payload: bytes) -> set[str] | None:
    """Record the modules of an operator, and drop changed ones if it is the first operator of its job.

    Args:
        job_id: Flink's id of the job.
        job_name: The job's name.
        payload: The operator's functions, as they were pickled.

    Returns:
        The argument of :func:`operator_loaded`.
    """
    with lock:
        use = user_modules.current_use()
        use.job_id = job_id
        use.job_name = job_name
        # Modules that were imported after operators had been loaded may be of files that have changed since.
        # Before the first job, nothing watched: operators of that job may be loading modules right now.
        if not _loading:
            user_modules.note_loaded(just_now=not _known_jobs)
        _loading.add(threading.get_ident())
        if _remember_job(job_id):
            _renew_changed(use)
        names = _names_in(payload)
        if names is not None:
            use.add_modules(names)
        return names


def _remember_job(job_id: str) -> bool:
    """Record that a job has run here; return True if it is the first time."""
    if job_id in _known_jobs:
        return False
    _known_jobs[job_id] = None
    while len(_known_jobs) > _KNOWN_JOBS:
        del _known_jobs[next(iter(_known_jobs))]
    return True


def operator_opens(job_id: str, job_name: str) -> None:
    """Record the job of an operator that was loaded before this module, and its modules."""
    with lock:
        use = user_modules.current_use()
        use.job_id = job_id
        use.job_name = job_name
        _remember_job(job_id)
        user_modules.note_loaded(just_now=True)


def operator_loaded(names: set[str] | None) -> None:
    """Record the modules that an operator has loaded."""
    with lock:
        use = user_modules.current_use()
        _loading.discard(threading.get_ident())
        user_modules.note_loaded(just_now=True)
        if names is not None:
            use.add_modules(user_modules.used_by(names))


def _names_in(payload: bytes) -> set[str] | None:
    """Return the strings in a pickle that could be names of modules; None if it is too large to search."""
    if len(payload) > _LARGEST_PAYLOAD:
        return None
    texts = {argument for _, argument, _ in pickletools.genops(payload) if isinstance(argument, str)}
    # Old protocols have module and name in one argument.
    return {word for text in texts for word in (text, text.partition(" ")[0])}


def _renew_changed(use: Use) -> None:
    """Drop changed modules that no job uses."""
    importlib.invalidate_caches()
    user_modules.forget_gone_directories()
    dropped: set[str] = set()
    for name in list(user_modules.in_memory()):
        if name not in dropped and user_modules.is_outdated(name):
            together = user_modules.with_dependents([name])
            if not user_modules.uses_of(together, use):
                dropped |= together
    if dropped:
        user_modules.drop_modules(dropped)


def renew_modules(stale: Collection[str]) -> list[Use]:
    """Drop modules that differ from those of this thread's job, and modules that depend on them.

    Args:
        stale: Names of the modules.

    Returns:
        The other jobs that use them, so that they were not dropped.
    """
    use = user_modules.current_use()
    # A package that stays points to its own directory, and so to its own version of a module in it.
    packages = {package for name in stale for package in packages_of(name) if package in sys.modules}
    together = user_modules.with_dependents({*stale, *filter(user_modules.has_moved, packages)})
    users = _wait_until_unused(together, use)
    if not users:
        user_modules.drop_modules(together)
    return users


def _wait_until_unused(names: Collection[str], use: Use) -> list[Use]:
    begin = time.monotonic()
    while users := user_modules.uses_of(names, use):
        patience = WAIT_SECONDS * (_WAIT_FOR_THREADS if any(user.has_thread for user in users) else 1)
        if time.monotonic() >= begin + patience:
            break
        time.sleep(_POLL_SECONDS)
    return users


def drop_old_bytecode(names: Iterable[str]) -> None:
    """Make imports of modules that are not in memory load their current files."""
    for name in names:
        if name not in sys.modules:
            source: Any = user_modules.read_source(user_modules.find_spec(name))
            if source is not None:
                user_modules.drop_old_bytecode(source)
