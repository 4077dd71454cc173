"""The user's modules in memory: their files, their dependents, the jobs that use them, how to drop them.

An import uses the module in memory and does not check its file. So a module of which a later job has
another version must be dropped before that job imports it, and with it each module that uses
objects of it. An unchanged module stays, with everything that it has in memory.

In thread mode, one interpreter serves all jobs of a TaskManager. A module can be dropped only if no other
running job has it. Each loaded operator has a :class:`Use`, which exists as long as the thread in which
PyFlink runs it, and as long as work of the attempt that outlives it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import linecache
import os
import sys
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.flink.shipping.code_objects import digest_code, functions_in

_log = bounded_logger("flink_agents.code")

MAIN = "__main__"
_OWN = frozenset({"flink_agents", "pyflink"})
_LIBRARIES = frozenset({"site-packages", "dist-packages"})
_PYTHON = os.path.dirname(os.__file__) + os.sep


def is_of_user(name: str, module: ModuleType) -> bool:
    """Return True if a loaded module is the user's, not one of Python's, of a library, or of this package."""
    if name == MAIN:
        return True
    top = name.partition(".")[0]
    file = getattr(module, "__file__", None)
    if file is None or top in _OWN or top in sys.stdlib_module_names or file.startswith(_PYTHON):
        return False
    return _LIBRARIES.isdisjoint(PurePath(file).parts)


def mentioned_modules(name: str, module: ModuleType, mentions: Iterable[str]) -> Iterator[str]:
    """Yield the names of modules that a module may use: from its values, and from the names in its code."""
    for value in list(vars(module).values()):
        # Not isinstance, which asks the value itself: it may be a proxy.
        if issubclass(type(value), ModuleType):
            yield value.__name__
        elif issubclass(type(value), (type, FunctionType)):
            yield value.__module__
    # Values imported from a module do not name it; the import statement does.
    names = list(mentions)
    packages = [name, *packages_of(name), *filter(_is_package_of_user, names)]
    for mention in names:
        yield mention
        yield from (f"{package}.{mention}" for package in packages)


def _is_package_of_user(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and hasattr(module, "__path__") and is_of_user(name, module)


# -- files --------------------------------------------------------------------------------


class ModuleSource:
    """The source of a module's file.

    Args:
        spec: The module's spec.
        text: The source.
    """

    def __init__(self, spec: ModuleSpec, text: str) -> None:
        self.spec = spec
        self.text = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._text = text

    @functools.cached_property
    def code(self) -> CodeType | None:
        """The compiled source, whatever a bytecode cache has; None if it cannot be compiled."""
        try:
            return compile(self._text, str(self.spec.origin), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return None

    @functools.cached_property
    def code_digest(self) -> bytes | None:
        """The digest of all its code; None if it cannot be compiled."""
        return None if self.code is None else digest_code(self.code)


def read_source(spec: ModuleSpec | None) -> ModuleSource | None:
    """Return the source that ``spec`` names; None if there is none."""
    if spec is None or spec.loader is None or not spec.origin:
        return None
    loader: Any = spec.loader
    if not hasattr(loader, "get_source"):
        # Such as pytest's hook: an import in a worker does without it.
        loader = SourceFileLoader(spec.name, spec.origin)
    try:
        text = loader.get_source(spec.name)
    except (ImportError, OSError, SyntaxError, ValueError):
        return None
    return None if text is None else ModuleSource(spec, text)


def find_spec(name: str) -> ModuleSpec | None:
    """Return the spec that an import would find if neither the module nor its packages were in memory."""
    path: Any = None
    spec: ModuleSpec | None = None
    for part in [*reversed(packages_of(name)), name]:
        spec = next(filter(None, (_ask_finder(finder, part, path) for finder in list(sys.meta_path))), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and part != name:
            return None
    return spec


def _ask_finder(finder: Any, name: str, path: Any) -> ModuleSpec | None:
    ask = getattr(finder, "find_spec", None)
    try:
        return None if ask is None else ask(name, path, None)
    except KeyError:
        # Python looks for the package in memory to find the folders of a namespace package in it.
        return _find_namespace(name, path)


def _find_namespace(name: str, path: Iterable[str] | None) -> ModuleSpec | None:
    """Return the folders of a namespace package inside another package."""
    folders = [os.path.join(entry, name.rpartition(".")[2]) for entry in path or ()]
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [folder for folder in folders if os.path.isdir(folder)]
    return spec if spec.submodule_search_locations else None


def drop_old_bytecode(source: ModuleSource) -> None:
    """Remove the cached bytecode of a module if it belongs to another source.

    Python only compares the time and the size of the file, which two versions may share.
    """
    cached = source.spec.cached
    get_code = getattr(source.spec.loader, "get_code", None)
    if get_code is None or not cached or not os.path.exists(cached):
        return
    try:
        if digest_code(get_code(source.spec.name)) != source.code_digest:
            os.unlink(cached)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        _log.debug("no look at the bytecode of %s: %s", source.spec.name, error)


# -- memory -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """Facts about a module in memory.

    Attributes:
        spec: Its spec; a module that is loaded again has a new one.
        text: Digest of the source that it was loaded from; None if that is no longer certain.
        code_digest: Digest of all its code; None likewise.
        mentions: Names in its code; None if the file has changed.
        jobs: Ids of the jobs that may use it, if no use says so.
    """

    spec: Any
    text: bytes | None = None
    code_digest: bytes | None = None
    mentions: frozenset[str] | None = None
    jobs: frozenset[str] = frozenset()


_notes: dict[str, Note] = {}


def in_memory() -> dict[str, ModuleType]:
    """Return the user's modules in memory that an import by their names would load again."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if issubclass(type(module), ModuleType) and is_of_user(name, module) and _can_leave(name, module)
    }


def _can_leave(name: str, module: ModuleType) -> bool:
    # Native code stays in the process, even if its module is dropped. Other names lead nowhere.
    spec = module.__spec__
    if name == MAIN or spec is None or spec.name != name or spec.loader is None:
        return False
    return not isinstance(spec.loader, ExtensionFileLoader)


def used_by(names: Iterable[str]) -> set[str]:
    """Return the user's modules among ``names``, and the modules in memory that they use."""
    modules = in_memory()
    waiting = [name for name in names if name in modules]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            note = note_of(name)
            mentions = note.mentions if note is not None and note.mentions is not None else ()
            waiting += [
                mentioned_name
                for mentioned_name in mentioned_modules(name, modules[name], mentions)
                if mentioned_name in modules
            ]
    return seen


def note_loaded(just_now: bool) -> None:
    """Record the files of newly loaded modules.

    Args:
        just_now: True if they were loaded so recently that their files have not changed since.
    """
    for name, module in in_memory().items():
        spec = module.__spec__
        previous_note = _notes.get(name)
        if (
            spec is None
            or getattr(spec, "_initializing", False)
            or (previous_note and previous_note.spec is spec)
        ):
            continue
        note = _read_note(module, spec, _jobs_beside(name))
        _notes[name] = note if just_now else replace(note, text=None, code_digest=None)


def _jobs_beside(name: str) -> frozenset[str]:
    uses = living_uses()
    if any(name in (use.modules or ()) for use in uses):
        return frozenset()
    return frozenset(use.job_id for use in uses)


def _read_note(module: ModuleType, spec: ModuleSpec, jobs: frozenset[str]) -> Note:
    source = read_source(spec)
    if source is None or source.code is None:
        return Note(spec, jobs=jobs)
    functions = set[bytes]()
    mentions = set[str]()
    whole = digest_code(source.code, functions, mentions)
    if any(digest_code(function.__code__) not in functions for _, function in functions_in(module)):
        # The file has changed since.
        return Note(spec, jobs=jobs)
    return Note(spec, source.text, whole, frozenset(mentions), jobs)


def note_of(name: str) -> Note | None:
    """Return the note of the module that is in memory now; None if it has none."""
    note = _notes.get(name)
    module = sys.modules.get(name)
    return note if note is not None and module is not None and note.spec is module.__spec__ else None


def is_outdated(name: str) -> bool:
    """Return True if an import would load another version than the one in memory, or if that is uncertain.

    The same code in another directory counts as another version: data files and modules that are imported
    later are next to it, and the directory of an ended job is removed.
    """
    module = sys.modules.get(name)
    if getattr(getattr(module, "__spec__", None), "_initializing", False):
        # Another thread imports it now. If it left, that thread would have classes of its own.
        return False
    note = note_of(name)
    source = read_source(find_spec(name))
    if note is None or note.text is None or source is None or has_moved(name):
        return True
    return note.text != source.text and note.code_digest != source.code_digest


def has_moved(name: str) -> bool:
    """Return True if an import of this module, which is in memory, would take another file."""
    spec = find_spec(name)
    module = sys.modules.get(name)
    return spec is None or spec.origin != getattr(getattr(module, "__spec__", None), "origin", None)


def uses_of(names: Collection[str], me: Use) -> list[Use]:
    """Return the uses of other jobs than ``me`` that include one of these modules, or may include one."""
    other_uses = [use for use in living_uses() if use is not me and use.job_id != me.job_id]
    notes = [note_of(name) for name in names]
    return [
        use
        for use in other_uses
        if use.modules is None
        or not use.modules.isdisjoint(names)
        or any(note is None or use.job_id in note.jobs for note in notes)
    ]


def with_dependents(names: Iterable[str]) -> set[str]:
    """Return these modules, and the user's modules in memory that use their objects."""
    modules = in_memory()
    uses = {name: _used_modules(name, module) for name, module in modules.items()}
    affected_names = {name for name in names if name in modules}
    while True:
        more = {
            name
            for name, used in uses.items()
            if name not in affected_names
            and (used is None or not used.isdisjoint(affected_names) or _is_inside(name, affected_names))
        }
        if not more:
            return affected_names
        affected_names |= more


def _is_inside(name: str, packages: Collection[str]) -> bool:
    # A package that is loaded again would not know its modules that have stayed.
    return any(package in packages for package in packages_of(name))


def _used_modules(name: str, module: ModuleType) -> set[str] | None:
    """Return the modules that a module uses, as far as that is noted; None if it is unknown."""
    note = note_of(name)
    if note is None or note.mentions is None:
        return None
    used = set(mentioned_modules(name, module, note.mentions))
    used |= {package for module_name in used for package in packages_of(module_name)}
    # An import binds a module in its package, which need not use it.
    bound = {f"{name}.{variable}" for variable in list(vars(module))} - {
        f"{name}.{mention}" for mention in note.mentions
    }
    return used - bound


def drop_modules(names: Collection[str]) -> None:
    """Drop modules from memory, with everything cached about them: the next import loads their files."""
    module_ids = {id(sys.modules[name]) for name in names if name in sys.modules}
    aliases = {name for name, module in list(sys.modules.items()) if id(module) in module_ids}
    for name in sorted({*names, *aliases}):
        module = sys.modules.pop(name, None)
        _notes.pop(name, None)
        parent, _, last = name.rpartition(".")
        holder = sys.modules.get(parent)
        if module is not None and holder is not None and vars(holder).get(last) is module:
            delattr(holder, last)
        if (file := getattr(module, "__file__", None)) is not None:
            linecache.cache.pop(file, None)
    importlib.invalidate_caches()
    for name in names:
        if (source := read_source(find_spec(name))) is not None:
            drop_old_bytecode(source)
    forget_classes()
    _log.info("modules of an earlier job leave memory: %s", ", ".join(sorted(names)))


def forget_classes() -> None:
    """Clear the caches of this package that hold the user's classes by name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flink_agents":
            for value in list(vars(module).values()):
                if type(value) is functools._lru_cache_wrapper:
                    value.cache_clear()


def forget_gone_directories() -> None:
    """Remove directories of ended jobs from ``sys.path``, to which each job adds its own."""
    for entry in set(sys.path):
        if os.path.isabs(entry) and "python-dist-" in entry and not os.path.exists(entry):
            while entry in sys.path:
                sys.path.remove(entry)
                sys.path_importer_cache.pop(entry, None)


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
        """The name of the job, to display."""
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
    """Return the uses of all operators that have not ended."""
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
