"""Gives a job that arrives in this process its own version of the user's modules.

Twice: when the first operator of a job is loaded, everything whose file has changed leaves memory, so
that functions of PyFlink's own find the job's modules as well; and when an agent arrives with the digests
of its modules, what differs from them. What another job uses that still lives stays in any case.
"""

from __future__ import annotations

import importlib
import pickletools
import sys
import threading
import time
from collections.abc import Collection, Iterable
from typing import Any

from flink_agents.api.logs import bounded_logger
from flink_agents.runtime.flink.shipping import module_uses, user_modules
from flink_agents.runtime.flink.shipping.module_uses import Use, packages_of

_log = bounded_logger("flink_agents.code")

lock = threading.RLock()
"""Held while memory is compared and changed."""

_KNOWN_JOBS = 10_000
_LARGEST_PAYLOAD = 4 << 20

WAIT_SECONDS = 10.0
"""How long a job waits for what goes on behind the threads of a job that has ended."""

_WAIT_FOR_THREADS = 0.1
"""The part of that time for which it waits for threads: they end before Flink says that their job has."""

_POLL_SECONDS = 0.02

_known_jobs: dict[str, None] = {}
"""Jobs that have been here: their modules are compared with their own digests only."""


_loading: set[int] = set()
"""Threads in which operators are being loaded; what comes into memory meanwhile may be theirs."""


def operator_arrives(job_id: str, job_name: str, payload: bytes) -> set[str] | None:
    """Note what an operator uses, and renew memory if it is the first one of its job.

    Args:
        job_id: Flink's id of the job.
        job_name: The job's name.
        payload: The operator's functions, as they were pickled.

    Returns:
        What :func:`operator_loaded` is to be given.
    """
    with lock:
        use = module_uses.current()
        use.job_id, use.job_name = job_id, job_name
        # What was imported after operators had been loaded may be of files that have changed since.
        if not _loading:
            user_modules.note_loaded(just_now=False)
        _loading.add(threading.get_ident())
        if _remember(job_id):
            _renew_changed(use)
        names = _names_in(payload)
        if names is not None:
            use.add(names)
        return names


def _remember(job_id: str) -> bool:
    """Note that a job has been here; whether it is the first time."""
    if job_id in _known_jobs:
        return False
    _known_jobs[job_id] = None
    while len(_known_jobs) > _KNOWN_JOBS:
        del _known_jobs[next(iter(_known_jobs))]
    return True


def operator_opens(job_id: str, job_name: str) -> None:
    """Note whose an operator is that was loaded before this module, and what it has in memory."""
    with lock:
        use = module_uses.current()
        use.job_id, use.job_name = job_id, job_name
        _remember(job_id)
        user_modules.note_loaded(just_now=True)


def operator_loaded(names: set[str] | None) -> None:
    """Note what an operator has brought into memory."""
    with lock:
        use = module_uses.current()
        _loading.discard(threading.get_ident())
        user_modules.note_loaded(just_now=True)
        if names is not None:
            use.add(user_modules.used_by(names))


def _names_in(payload: bytes) -> set[str] | None:
    """Return the texts in a pickle that could be names of modules; None if it is too large to look at."""
    if len(payload) > _LARGEST_PAYLOAD:
        return None
    texts = {argument for _, argument, _ in pickletools.genops(payload) if isinstance(argument, str)}
    # Old protocols have module and name in one argument.
    return {word for text in texts for word in (text, text.partition(" ")[0])}


def _renew_changed(use: Use) -> None:
    """Drop what is not up to date and used by nobody."""
    importlib.invalidate_caches()
    user_modules.forget_gone_directories()
    dropped: set[str] = set()
    for name in list(user_modules.in_memory()):
        if name not in dropped and user_modules.is_outdated(name):
            together = user_modules.with_dependents([name])
            if not user_modules.users(together, use):
                dropped |= together
    if dropped:
        user_modules.drop(dropped)


def renew(stale: Collection[str]) -> list[Use]:
    """Drop modules that are not those of this thread's job, and what depends on them.

    Args:
        stale: Names of the modules.

    Returns:
        What uses them elsewhere, so that they have not been dropped.
    """
    use = module_uses.current()
    # A package that stays leads to its own directory, and so to its own version of a module in it.
    packages = {package for name in stale for package in packages_of(name) if package in sys.modules}
    together = user_modules.with_dependents({*stale, *filter(user_modules.has_moved, packages)})
    users = _wait_until_unused(together, use)
    if not users:
        user_modules.drop(together)
    return users


def _wait_until_unused(names: Collection[str], use: Use) -> list[Use]:
    begin = time.monotonic()
    while users := user_modules.users(names, use):
        patience = WAIT_SECONDS * (_WAIT_FOR_THREADS if any(one.has_thread for one in users) else 1)
        if time.monotonic() >= begin + patience:
            break
        time.sleep(_POLL_SECONDS)
    return users


def drop_old_bytecode(names: Iterable[str]) -> None:
    """Let imports of modules that are not in memory load their files as they are now."""
    for name in names:
        if name not in sys.modules:
            source: Any = user_modules.read_source(user_modules.find_spec(name))
            if source is not None:
                user_modules.drop_old_bytecode(source)
