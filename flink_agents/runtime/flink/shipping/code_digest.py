"""``CodeCheck``: detects a worker that runs another version of a module than the job was built with.

In thread mode, one interpreter serves all attempts and all jobs of a TaskManager, and an imported
module stays in memory. A job with a changed version of that module
would silently run the old one.

The driver digests the modules of the agent and their imports, both as files and as loaded in its memory. The
worker looks for the digest of each function that it has in memory. Code outside of functions leaves no trace
in memory that could be digested; its version shows in the file that the worker noted when it loaded the
module, or in two jobs that bring different versions.

A job that arrives gets its own version of the user's modules. When its first operator is loaded, all modules
whose file has changed are dropped, so that PyFlink's functions find the job's modules as well. When an agent
arrives with the digests of its modules, those that differ are dropped. Modules that another running job uses
always stay.
"""

from __future__ import annotations

import importlib
import os
import pickletools
import platform
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.places import short_path
from flink_agents.api.errors import StaleCodeError
from flink_agents.plan import AgentCode
from flink_agents.plan.references import FunctionRef
from flink_agents.runtime.flink.launch.jvm import in_flink_worker
from flink_agents.runtime.flink.shipping import user_modules
from flink_agents.runtime.flink.shipping.code_objects import digest_code, functions_in
from flink_agents.runtime.flink.shipping.user_modules import (
    MAIN,
    Use,
    is_of_user,
    mentioned_modules,
    packages_of,
)

_log = bounded_logger("flink_agents.code")

_SHOWN = 5
"""The number of functions that an error names."""


@dataclass(frozen=True)
class ModuleCode:
    """A module of the job, as it is on the driver.

    Attributes:
        name: Its name.
        file: Its file on the driver, for messages.
        digest: Digest of all its code.
        functions: Digests of each piece of code in it, as written and as it is in memory there;
            these differ if pytest or another import hook has rewritten it.
    """

    name: str
    file: str
    digest: bytes
    functions: frozenset[bytes]


class CodeCheck:
    """Compares a worker's modules with the driver's, when it is unpickled and when it is called.

    Args:
        interpreter: The driver's Python, by :func:`interpreter_name`.
        modules: The driver's modules.
    """

    def __init__(self, interpreter: str, modules: tuple[ModuleCode, ...]) -> None:
        self.interpreter = interpreter
        self.modules = modules

    @classmethod
    def for_agent(cls, code: AgentCode | None, shipped_objects: Iterable[Any] = ()) -> CodeCheck:
        """Return the check for the modules of an agent and those that they use; for None, an empty check.

        Args:
            code: The agent's code.
            shipped_objects: Functions, classes and other objects of the user that are shipped with it.
        """
        if code is None:
            return cls(interpreter_name(), ())
        return cls(
            interpreter_name(), tuple(modules_used([*_modules_of(code), *_modules_with(shipped_objects)]))
        )

    @classmethod
    def of_values(cls, values: Iterable[Any]) -> CodeCheck:
        """Return the check for the modules of functions, classes and other objects."""
        return cls(interpreter_name(), tuple(modules_used(_modules_with(values))))

    def check_modules(self, remember: bool = True) -> None:
        """Compare the modules that this process has in memory.

        Args:
            remember: True if a matching module counts as known from now on. No part of it may be
                still about to be imported.

        Raises:
            StaleCodeError: One of them is another version.
        """
        if self.interpreter != (current_interpreter := interpreter_name()):
            if remember:
                _log.warning(
                    "stale modules are not looked for: the job is from %s, and this is %s",
                    self.interpreter,
                    current_interpreter,
                )
            return
        for module in self.modules:
            _compare_module(module, remember)

    def __reduce__(self) -> tuple[Any, ...]:
        # A stale module may lack objects that are unpickled next, and that should not be the error.
        return _unpickle_check, (self.interpreter, self.modules)


def _unpickle_check(interpreter: str, modules: tuple[ModuleCode, ...]) -> CodeCheck:
    check = CodeCheck(interpreter, modules)
    if in_flink_worker() and interpreter == interpreter_name():
        _load_job_versions(modules)
    check.check_modules(remember=False)
    return check


def interpreter_name() -> str:
    """Return a name of this Python. Pythons of one name compile the same source to the same code."""
    return f"{platform.python_implementation()} {platform.python_version()} -O{sys.flags.optimize}"


# -- on the worker ------------------------------------------------------------------------

_accepted: dict[str, tuple[Any, bytes]] = {}
"""Spec and digest of each module that matched. A module that is loaded again has a new spec."""


def _load_job_versions(modules: tuple[ModuleCode, ...]) -> None:
    """Drop modules of other versions, if an import would load the job's version.

    Raises:
        StaleCodeError: Another job uses one.
    """
    with renewal_lock:
        names = {module.name: module for module in modules}
        user_modules.current_use().add_modules(names)
        drop_old_bytecode(names)
        stale = {name for name, module in names.items() if _would_change(module)}
        if not stale:
            return
        users = drop_stale_modules(stale)
        if users:
            name = min(stale)
            raise _stale_code_error(
                names[name], sys.modules[name], _different_functions(names[name], sys.modules[name]), users
            )


def _would_change(claimed: ModuleCode) -> bool:
    """Return True if the module in memory is another version, and the file is the job's."""
    module = sys.modules.get(claimed.name)
    if module is None:
        return False
    note = user_modules.note_of(claimed.name)
    noted = None if note is None else note.code_digest
    if noted == claimed.digest or (noted is None and not _is_different(claimed, module)):
        return False
    importlib.invalidate_caches()
    source = user_modules.read_source(user_modules.find_spec(claimed.name))
    return source is not None and source.code_digest == claimed.digest


def _is_different(claimed: ModuleCode, module: ModuleType) -> bool:
    """Return True if the module in memory is another version than the job's."""
    known_spec, known_digest = _accepted.get(claimed.name, (None, b""))
    if known_spec is not None and known_spec is module.__spec__:
        return known_digest != claimed.digest
    return bool(_different_functions(claimed, module))


def _different_functions(claimed: ModuleCode, module: ModuleType) -> list[str]:
    """Return the names of the functions in memory that differ from the job's."""
    return [
        name
        for name, function in functions_in(module)
        if digest_code(function.__code__) not in claimed.functions
    ]


def _compare_module(claimed: ModuleCode, remember: bool) -> None:
    """Check that the module in memory is the version that the job was built with; see ``check_modules``."""
    module = sys.modules.get(claimed.name)
    spec = getattr(module, "__spec__", None)
    if module is None or spec is None:
        return
    with renewal_lock:
        if _is_different(claimed, module):
            raise _stale_code_error(claimed, module, _different_functions(claimed, module))
        if remember:
            _accepted[claimed.name] = (spec, claimed.digest)


def _stale_code_error(
    claimed: ModuleCode, module: ModuleType, differing: list[str], users: Sequence[Use] = ()
) -> StaleCodeError:
    """Return the error of a module in memory that differs from the job's, and that ``users`` still need."""
    if differing:
        shown = ", ".join(differing[:_SHOWN])
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        what = f"another {shown}{more}"
    else:
        what = "a version that differs outside of functions, from an earlier job"
    description = f"{what}; in process {os.getpid()}, loaded from {module.__file__}"
    fix = (
        "restart the TaskManager, which keeps the modules of earlier jobs (of a local job: this Python "
        "process), or rename the module; if that does not help, the workers have another version installed"
    )
    if users:
        jobs = ", ".join(sorted({use.job for use in users}))
        description = f"{description}; in use by the job {jobs}"
        fix = (
            "stop that job first, or rename the module (or its package), or use separate TaskManagers for "
            "the two jobs: one Python process has one version of a module"
        )
    return StaleCodeError(
        f"the worker has another version of the module {claimed.name} in memory",
        expected="the code that this job was built with",
        found=description,
        fix=fix,
        where=claimed.file,
    )


# -- on the driver ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loaded:
    """A digested module: its spec, its code, and the names that the code mentions."""

    spec: Any
    code: ModuleCode | None
    mentions: frozenset[str]


_loaded: dict[str, _Loaded] = {}
"""The digest of each module when it was first seen, which is close to its import."""


def _modules_of(code: AgentCode) -> Iterator[str]:
    for target in code.objects():
        yield FunctionRef.from_object(target).module
    for name in code.named:
        yield name.partition(":")[0]


def _modules_with(values: Iterable[Any]) -> list[str]:
    return sorted({getattr(value, "__module__", None) or type(value).__module__ for value in values})


def modules_used(names: Iterable[str]) -> Iterator[ModuleCode]:
    """Yield the user's modules among ``names``, and those that their code or their namespace mentions."""
    waiting = list(names)
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or module is None or not is_of_user(name, module):
            continue
        seen.add(name)
        loaded = _load_module(name, module)
        if loaded.code is not None:
            yield loaded.code
        waiting += mentioned_modules(name, module, loaded.mentions)


def _load_module(name: str, module: ModuleType) -> _Loaded:
    spec = getattr(module, "__spec__", None)
    loaded_module = _loaded.get(name)
    if loaded_module is None or loaded_module.spec is not spec:
        loaded_module = _loaded[name] = _digest_module(name, module, spec)
    return loaded_module


def _digest_module(name: str, module: ModuleType, spec: Any) -> _Loaded:
    # Code of the main script is shipped with the job, like modules registered for pickling by value.
    if name == MAIN or spec is None or _is_shipped(name):
        return _Loaded(spec, None, frozenset())
    compiled = _compile_source(name, module, spec)
    if compiled is None:
        return _Loaded(spec, None, frozenset())
    functions = set[bytes]()
    mentions = set[str]()
    whole = digest_code(compiled, functions, mentions)
    for _, function in functions_in(module):
        digest_code(function.__code__, functions)
    file = short_path(str(module.__file__))
    return _Loaded(spec, ModuleCode(name, file, whole, frozenset(functions)), frozenset(mentions))


def _is_shipped(name: str) -> bool:
    by_value = cloudpickle.list_registry_pickle_by_value()
    return any(module_name in by_value for module_name in (name, *packages_of(name)))


def _compile_source(name: str, module: ModuleType, spec: Any) -> CodeType | None:
    """Return the code of the module's file as an import would get it; None if there is none."""
    source = user_modules.read_source(spec)
    if source is not None:
        return source.code
    get_code = getattr(spec.loader, "get_code", None)
    try:
        if get_code is None:
            # Such as pytest's hook: an import in the worker does without it.
            get_code = SourceFileLoader(name, str(module.__file__)).get_code
        return get_code(name)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        _log.debug("no check of the module %s: %s", name, error)
        return None


# -- renewal of modules on the worker ------------------------------------------------------

renewal_lock = threading.RLock()
"""Held while memory is compared and changed."""

_KNOWN_JOBS = 10_000
"""The number of jobs that are remembered."""

_LARGEST_PAYLOAD = 4 << 20
"""The size of a pickle, in bytes, up to which it is searched for names of modules."""

WAIT_SECONDS = 10.0
"""Time that a job waits for work that outlives the threads of an ended job."""

_WAIT_FOR_THREADS = 0.1
"""The part of that time for threads: they end before Flink reports the end of their job."""

_POLL_SECONDS = 0.02
"""The interval of checks if modules are still in use."""

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
    with renewal_lock:
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
    with renewal_lock:
        use = user_modules.current_use()
        use.job_id = job_id
        use.job_name = job_name
        _remember_job(job_id)
        user_modules.note_loaded(just_now=True)


def operator_loaded(names: set[str] | None) -> None:
    """Record the modules that an operator has loaded.

    Args:
        names: The result of :func:`operator_arrives`.
    """
    with renewal_lock:
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


def drop_stale_modules(stale: Collection[str]) -> list[Use]:
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
    """Wait for some seconds until only ``use`` needs the modules; return the other uses that remain."""
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
