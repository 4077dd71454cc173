"""Modules that may be imported to find a class that state names.

Bytes of state never decide which modules are imported. A class is looked up in the loaded modules.
Only if its module is not loaded, modules are imported that the agent's own code imports inside its
functions, as it would import them anyway, and those that the option ``state.modules`` names.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.util import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any

_METHODS = (staticmethod, classmethod)
_DICT = type.__dict__["__dict__"].__get__
_INSTALLED = ("site-packages", "dist-packages")
_PACKAGE = __name__.partition(".")[0]

_lock = threading.RLock()
_homes: set[str] = set()
_named: set[str] = set()
_failed: dict[str, str] = {}


def know(homes: Iterable[str], named: str | None = None) -> None:
    """Add modules that reading state may import; they stay for the life of the process.

    Args:
        homes: Modules of the agent's own code.
        named: Modules that the option ``state.modules`` names, separated by commas, or None.
    """
    with _lock:
        # A module that could not be imported may have another version by now.
        _failed.clear()
        _read_imports.cache_clear()
        _homes.update(homes)
        _named.update(filter(None, (module.strip() for module in (named or "").split(","))))


def import_for(module: str) -> bool:
    """Import the modules that may define the classes of ``module``; return True if it is loaded now."""
    with _lock:
        for name in _candidates(module):
            _import(name)
            if module in sys.modules:
                break
        return module in sys.modules


def why_not(module: str) -> str:
    """Return the reason why ``module`` is not loaded."""
    failed = _failed.get(module)
    return failed or f"the module {module!r} is not imported, and reading state imports none by its bytes"


def _import(name: str) -> None:
    if name in sys.modules or name in _failed:
        return
    try:
        import_module(name)
    except Exception as error:
        # The user's own module, which may raise anything.
        _failed[name] = f"importing {name} raised {type(error).__name__}: {error}"[:500]


def _candidates(module: str) -> Iterator[str]:
    """Yield the modules that may be imported for ``module``, the likeliest first."""
    if any(module == name or module.startswith(f"{name}.") for name in _named):
        yield module
    top = module.partition(".")[0]
    same = sorted(name for name in {*_homes, *_inner_imports()} if name.partition(".")[0] == top)
    # A module with another name may import it.
    yield from sorted(same, key=lambda name: (name != module, name))


def _inner_imports() -> frozenset[str]:
    """Return the modules that functions of the agent's own code import when they are called."""
    # Read again if there are more modules than before: bytes may name many that do not exist.
    return _read_imports(len(sys.modules), len(_homes))


@lru_cache(maxsize=1)
def _read_imports(modules: int, homes: int) -> frozenset[str]:
    imports: set[str] = set()
    for name in own_modules():
        module = sys.modules[name]
        for code in _codes_of(module):
            imports.update(_imports_of(code, _text(vars(module).get("__package__"))))
    return frozenset(imports)


def own_modules() -> list[str]:
    """Return the loaded modules of the agent's own code, and the modules of the same kind that they use."""
    seen: dict[str, None] = {}
    unread = [name for name in _homes if name in sys.modules]
    while unread:
        name = unread.pop()
        module = sys.modules.get(name)
        if name in seen or not is_plain(module) or not _is_own(name, module):
            continue
        seen[name] = None
        for value in list(vars(module).values()):
            used = value.__name__ if is_plain(value) else _defined_in(value)
            if isinstance(used, str) and used in sys.modules:
                unread.append(used)
    return list(seen)


def is_plain(module: object) -> bool:
    """Return True if the content of ``module`` can be read without running its code."""
    return type(module) is ModuleType


def _is_own(name: str, module: Any) -> bool:
    if name in _homes:
        return True
    top = name.partition(".")[0]
    if top == _PACKAGE or top in sys.stdlib_module_names:
        return False
    return not any(part in _text(vars(module).get("__file__")) for part in _INSTALLED)


def _defined_in(value: Any) -> Any:
    if isinstance(value, FunctionType):
        return value.__module__
    return _DICT(value).get("__module__") if issubclass(type(value), type) else None


def _codes_of(module: Any) -> Iterator[CodeType]:
    """Yield the code of all functions and methods in a module."""
    for value in list(vars(module).values()):
        if isinstance(value, FunctionType):
            yield value.__code__
        elif issubclass(type(value), type) and _defined_in(value) == module.__name__:
            for member in _DICT(value).values():
                function = getattr(member, "__func__", member) if type(member) in _METHODS else member
                if isinstance(function, FunctionType):
                    yield function.__code__


def _imports_of(code: CodeType, package: str) -> Iterator[str]:
    previous_instructions: list[dis.Instruction] = []
    for current_instruction in dis.get_instructions(code):
        if current_instruction.opname == "IMPORT_NAME":
            level, names = (instruction.argval for instruction in previous_instructions[-2:])
            yield from _names(str(current_instruction.argval), level, names, package)
        previous_instructions.append(current_instruction)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports_of(constant, package)


def _names(name: str, level: Any, names: Any, package: str) -> Iterator[str]:
    """Yield the names that an import statement may import: a module, and its names that may be modules."""
    if isinstance(level, int) and level:
        try:
            name = resolve_name("." * level + name, package)
        except ImportError:
            return
    yield name
    for inner in names or ():
        if inner != "*":
            yield f"{name}.{inner}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
