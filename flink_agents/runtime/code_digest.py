"""``CodeCheck``: notices a worker that runs another version of a module than the job was built with.

In thread mode one interpreter serves all attempts and all jobs of a TaskManager, and a module that
one of them has imported stays in memory. A job that comes with a changed version of that module
would run the old one and say nothing.

The driver digests the modules of the agent, and what they use, as files and as they are in its own
memory. The worker looks for the digest of each function that it has in memory. Digests do not
depend on paths and lines. What stands outside of functions leaves no trace in memory that could be
digested; there, two jobs that bring different versions of one loaded module give it away.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from flink_agents.api.errors import StaleCodeError
from flink_agents.api.logs import bounded_logger
from flink_agents.api.places import short_path
from flink_agents.plan import AgentCode
from flink_agents.plan.model import FunctionRef

_log = bounded_logger("flink_agents.code")

_MAIN = "__main__"
_OWN = frozenset({"flink_agents", "pyflink"})
_LIBRARIES = frozenset({"site-packages", "dist-packages"})
_SHOWN = 5
"""How many functions an error names."""


@dataclass(frozen=True)
class ModuleCode:
    """A module of the job, as the driver has it.

    Attributes:
        name: Its name.
        file: Its file on the driver, for people.
        whole: Digest of all its code.
        functions: Digests of each piece of code in it, as written and as it is in memory there,
            which differs where pytest or another import hook has rewritten it.
    """

    name: str
    file: str
    whole: bytes
    functions: frozenset[bytes]


class CodeCheck:
    """Compares a worker's modules with those of the driver, when it arrives and when it is asked.

    Args:
        interpreter: The driver's Python.
        modules: The driver's modules.
    """

    def __init__(self, interpreter: str, modules: tuple[ModuleCode, ...]) -> None:
        self.interpreter = interpreter
        self.modules = modules

    @classmethod
    def of(cls, code: AgentCode | None) -> CodeCheck:
        """The check for the modules of an agent, and for those that they use; of None, of nothing."""
        modules = modules_used(_modules_of(code)) if code is not None else ()
        return cls(interpreter_name(), tuple(modules))

    def check(self, remember: bool = True) -> None:
        """Compare the modules that this process has in memory.

        Args:
            remember: Whether a module that passes is known from now on. No part of it may be
                still about to be imported.

        Raises:
            StaleCodeError: One of them is another version.
        """
        if self.interpreter != (own := interpreter_name()):
            if remember:
                _log.warning(
                    "stale modules are not looked for: the job is from %s, and this is %s",
                    self.interpreter,
                    own,
                )
            return
        for module in self.modules:
            _compare(module, remember)

    def __reduce__(self) -> tuple[Any, ...]:
        # A stale module may lack what is unpickled behind this, and the error should not be that.
        return _arrive, (self.interpreter, self.modules)


def _arrive(interpreter: str, modules: tuple[ModuleCode, ...]) -> CodeCheck:
    check = CodeCheck(interpreter, modules)
    check.check(remember=False)
    return check


def interpreter_name() -> str:
    """Equal where the same source becomes the same code."""
    return f"{platform.python_implementation()} {platform.python_version()} -O{sys.flags.optimize}"


# -- on the worker ------------------------------------------------------------------------

_accepted: dict[str, tuple[Any, bytes]] = {}
"""Spec and digest of each module that has passed. A module that is loaded anew has a new spec."""

_lock = threading.Lock()


def _compare(claimed: ModuleCode, remember: bool) -> None:
    module = sys.modules.get(claimed.name)
    spec = getattr(module, "__spec__", None)
    if module is None or spec is None:
        return
    with _lock:
        known_spec, known_digest = _accepted.get(claimed.name, (None, b""))
        if known_spec is spec and known_digest == claimed.whole:
            return
        differing = [
            name
            for name, function in functions_in(module)
            if digest(function.__code__) not in claimed.functions
        ]
        if differing or known_spec is spec:
            raise _stale(claimed, module, differing)
        if remember:
            _accepted[claimed.name] = (spec, claimed.whole)


def _stale(claimed: ModuleCode, module: ModuleType, differing: list[str]) -> StaleCodeError:
    if differing:
        shown = ", ".join(differing[:_SHOWN])
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        what = f"another {shown}{more}"
    else:
        what = "a version that differs outside of functions, as an earlier job brought it"
    return StaleCodeError(
        f"the worker has another version of the module {claimed.name} in memory",
        expected="the code that this job was built with",
        found=f"{what}; in process {os.getpid()}, loaded from {module.__file__}",
        fix="restart the TaskManager, which keeps the modules of earlier jobs (of a local job: this "
        "Python process), or rename the module; where that does not help, the workers have another "
        "version installed",
        where=claimed.file,
    )


# -- on the driver ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loaded:
    """A module that was digested: its spec, its code, and the names that the code mentions."""

    spec: Any
    code: ModuleCode | None
    mentions: frozenset[str]


_loaded: dict[str, _Loaded] = {}
"""What was found at the first sight of each module, which is close to its import."""


def _modules_of(code: AgentCode) -> Iterator[str]:
    functions = [found for one in code.actions for found in (one.function, one.mark.when)]
    functions += [one.function for one in (*code.tools.values(), *code.clients.values())]
    for target in (*code.agent_class.__mro__, *functions, code.context_class, *code.events.values()):
        if target is not None:
            yield FunctionRef.of(target).module


def modules_used(names: Iterable[str]) -> Iterator[ModuleCode]:
    """The user's modules among ``names``, and those that their code or their namespace mentions."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or module is None or not _is_of_user(name, module):
            continue
        seen.add(name)
        loaded = _load(name, module)
        if loaded.code is not None:
            yield loaded.code
        waiting += _mentioned(name, module, loaded.mentions)


def _is_of_user(name: str, module: ModuleType) -> bool:
    if name == _MAIN:
        return True
    top = name.partition(".")[0]
    file = getattr(module, "__file__", None)
    if file is None or top in _OWN or top in sys.stdlib_module_names:
        return False
    return _LIBRARIES.isdisjoint(PurePath(file).parts)


def _mentioned(name: str, module: ModuleType, mentions: Iterable[str]) -> Iterator[str]:
    for value in list(vars(module).values()):
        # Not isinstance, which asks the value itself: it may be a proxy.
        if issubclass(type(value), ModuleType):
            yield value.__name__
        elif issubclass(type(value), (type, FunctionType)):
            yield value.__module__
    # Values that were imported from a module do not name it; the import statement does.
    packages = [name, *_packages(name)]
    for mentioned in mentions:
        yield mentioned
        yield from (f"{package}.{mentioned}" for package in packages)


def _packages(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def _load(name: str, module: ModuleType) -> _Loaded:
    spec = getattr(module, "__spec__", None)
    found = _loaded.get(name)
    if found is None or found.spec is not spec:
        found = _loaded[name] = _digested(name, module, spec)
    return found


def _digested(name: str, module: ModuleType, spec: Any) -> _Loaded:
    # Code of the main script travels with the job, and so does that of modules registered for it.
    if name == _MAIN or spec is None or _travels(name):
        return _Loaded(spec, None, frozenset())
    compiled = _compiled(name, module, spec)
    if compiled is None:
        return _Loaded(spec, None, frozenset())
    functions, mentions = set[bytes](), set[str]()
    whole = digest(compiled, functions, mentions)
    for _, function in functions_in(module):
        digest(function.__code__, functions)
    file = short_path(str(module.__file__))
    return _Loaded(spec, ModuleCode(name, file, whole, frozenset(functions)), frozenset(mentions))


def _travels(name: str) -> bool:
    by_value = cloudpickle.list_registry_pickle_by_value()
    return any(one in by_value for one in (name, *_packages(name)))


def _compiled(name: str, module: ModuleType, spec: Any) -> CodeType | None:
    """The code of the module's file as an import would get it; None where there is none."""
    get_code = getattr(spec.loader, "get_code", None)
    try:
        if get_code is None:
            # pytest's hook, for one: an import in the worker does without it.
            get_code = SourceFileLoader(name, str(module.__file__)).get_code
        return get_code(name)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        _log.debug("no check of the module %s: %s", name, error)
        return None


# -- digests ------------------------------------------------------------------------------


def digest(code: CodeType, found: set[bytes] | None = None, mentions: set[str] | None = None) -> bytes:
    """What ``code`` does, and not where it stands.

    Args:
        code: The code.
        found: Gets the digests of it and of all code inside.
        mentions: Gets the names that all of it uses.
    """

    def token(value: Any) -> Any:
        if isinstance(value, CodeType):
            return digest(value, found, mentions)
        if isinstance(value, tuple):
            return [token(one) for one in value]
        if isinstance(value, frozenset):
            # Its order differs from process to process.
            return {"set": sorted(repr(token(one)) for one in value)}
        return repr(value)

    if mentions is not None:
        mentions.update(code.co_names)
    parts = (
        getattr(code, "co_qualname", code.co_name),
        (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_code,
        getattr(code, "co_exceptiontable", b""),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        token(code.co_consts),
    )
    result = blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=8).digest()
    if found is not None:
        found.add(result)
    return result


def functions_in(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """The functions that the file of a loaded module defines and its names lead to.

    Classes, wrappers and closures are looked into. What decorators generate is no code of the file.
    """
    names = vars(module)
    waiting, seen = list(reversed(names.values())), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is FunctionType:
            if value.__code__.co_filename == names.get("__file__"):
                yield value.__qualname__, value
        waiting += _inside(value, module.__name__)


_HOLDERS: tuple[tuple[tuple[type, ...], tuple[str, ...]], ...] = (
    ((staticmethod, classmethod), ("__func__",)),
    ((property,), ("fget", "fset", "fdel")),
    ((functools.partial, functools.partialmethod, functools.cached_property), ("func",)),
)
"""Objects around a function, and where they have it."""


def _inside(value: Any, module: str) -> list[Any]:
    """What a value holds that can be a function of the module."""
    if issubclass(type(value), type):
        return list(vars(value).values()) if value.__module__ == module else []
    for kinds, attributes in _HOLDERS:
        if issubclass(type(value), kinds):
            return [getattr(value, attribute) for attribute in attributes]
    try:
        # Not getattr: the value may be a proxy, or answer to any name.
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return []
    found = [own["__wrapped__"]] if "__wrapped__" in own else []
    if type(value) is FunctionType:
        found += [cell for cell in map(_content, value.__closure__ or ()) if callable(cell)]
    return found


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
