"""Names of classes in state: ``module:qualname``, checked when written and when read.

Only data classes can be named (Pydantic models, dataclasses, named tuples, enums), so reading state never
runs a constructor that its bytes chose freely. Nor does the lookup of a class run code that the bytes chose:
it uses the dictionaries of modules and classes, without running computed attributes. Bytes never decide which
modules are imported. Only if the module of a class is not loaded, modules are imported that the agent's own
code imports inside its functions, as it would import them anyway, and those of the option ``state.modules``.

The name of a parametrized model has the names of its generic class and of its arguments, so that it is found
before the program has written it: ``shop.pages:Page[shop.orders:Order]``.
"""

from __future__ import annotations

import dis
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache
from importlib import import_module
from importlib.util import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any, NewType

from pydantic import BaseModel

from flink_agents.api.durable.type_texts import UnreadableTypeError, parameters_of, read_type, write_type
from flink_agents.api.durable.upgrades import upgrade_of
from flink_agents.api.errors import UnknownTypeNameError, UnserializableValueError

# Read a class without its metaclass, which may run code.
_DICT = type.__dict__["__dict__"].__get__
_mro = type.__dict__["__mro__"].__get__


def stored_name(cls: type) -> str:
    """Return the name under which values of a class are written, also of a declared local class.

    Raises:
        UnserializableValueError: The class cannot be found again by its name, and no declared type gives it.
    """
    try:
        return type_name(cls)
    except UnserializableValueError:
        local_classes = _local_classes.get()
        name = None if local_classes is None else local_classes.name_of(cls)
        if name is None:
            raise
        return name


@lru_cache(maxsize=4096)
def type_name(cls: type) -> str:
    """Return the name by which every process finds a class.

    Raises:
        UnserializableValueError: The class cannot be found again by its name.
    """
    parameters = parameters_of(cls)
    name = (parameters and write_type(cls)) or name_of(cls)
    resolved_class = _find(name)
    # Pydantic may have two classes of the same arguments, whose values are equal.
    if resolved_class is cls or (parameters is not None and parameters_of(resolved_class) == parameters):
        return name
    fix = "define the class at the top level of a module"
    if parameters is not None:
        fix = "define its arguments at the top level of modules; or, for arguments without names, such as "
        fix += f"Annotated, a subclass: class My{parameters[0].__name__}({cls.__name__})"
    raise UnserializableValueError(
        f"values of the class {cls.__qualname__} cannot be written to state",
        expected="a class that can be imported by name",
        found=name,
        fix=fix,
    )


@lru_cache(maxsize=4096)
def resolve_type(name: str) -> type[Any]:
    """Return the data class with a name, after importing a module that may define it.

    Raises:
        UnknownTypeNameError: There is no such class, its module may not be imported, or it is not a data
            class.
    """
    cls = _find_or_import(name)
    if not is_data_class(cls):
        raise UnknownTypeNameError(
            f"state holds a value of class {shorten(name)}, which this program does not have",
            expected="a data class under the name that it had when the value was written",
            found=_what_is_wrong(name, cls),
            fix=f"if it was moved or renamed, write @upgrades({shorten(name)}) above the new class; "
            "otherwise import its module in the agent's module, or name it in the option state.modules",
        )
    return cls


def type_that_is_there(name: str) -> type[Any] | None:
    """Return the data class with a name if its module is loaded, else None; imports nothing."""
    cls = _find(name)
    return cls if is_data_class(cls) else None


def name_of(cls: type) -> str:
    """Return ``module:qualname`` of a class; it is not checked that the class is found by it."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_error(name: str) -> type[BaseException] | None:
    """Return the exception class with a name; None if there is none, or it may not be imported."""
    cls = _find_or_import(name)
    return cls if _is_class(cls) and BaseException in _mro(cls) else None


def find_class(name: str) -> type[Any] | None:
    """Return the class with a name, of any kind; None if there is none, or it may not be imported."""
    cls = _find_or_import(name)
    return cls if _is_class(cls) else None


def find_type(name: str) -> type[Any] | None:
    """Return the data class with a name, also a declared local one; None if there is none."""
    try:
        return resolve_type(name)
    except UnknownTypeNameError:
        local_classes = _local_classes.get()
        return None if local_classes is None else local_classes.find(name)


class Kind(Enum):
    """The kinds of classes whose values state holds by name."""

    ENUM = "an enum"
    MODEL = "a pydantic model"
    DATACLASS = "a dataclass"
    NAMED_TUPLE = "a named tuple"


@lru_cache(maxsize=4096)
def kind_of(cls: type) -> Kind | None:
    """Return the kind of a class; None if state does not hold its values by name."""
    bases = _mro(cls)
    if Enum in bases:
        return Kind.ENUM
    if BaseModel in bases:
        return Kind.MODEL
    if member_of(cls, "__dataclass_fields__") is not None:
        return Kind.DATACLASS
    if tuple in bases and member_of(cls, "_fields") is not None:
        return Kind.NAMED_TUPLE
    return None


def is_data_class(cls: Any) -> bool:
    """Return True if state may hold values of ``cls`` by name."""
    return _is_class(cls) and kind_of(cls) is not None


def shorten(value: object) -> str:
    """Return the ``repr`` of a value for a message, in about 200 characters; it says if that raises."""
    try:
        text = str.__str__(repr(value))
    except BaseException as error:
        return f"{type(value).__qualname__} (its repr raised {type(error).__name__})"
    return text if len(text) <= 200 else text[:200] + "..."


def _what_is_wrong(name: str, cls: Any) -> str:
    """Return the reason why a name has no data class; ``cls`` is what was found, or None."""
    module, _, qualname = name.partition(":")
    if module not in sys.modules:
        return why_not(module[:200])
    if cls is None:
        return f"the module has no such class: {shorten(qualname)}"
    return f"{shorten(qualname)} is not a data class"


def _find_or_import(name: str) -> Any:
    """Return the object with a name, or None; import a module that may define it, if that is allowed."""
    module = name.partition(":")[0]
    if module not in sys.modules:
        import_for(module)
    return _find(name, _find_or_import)


def _find(name: str, find_part: Callable[[str], Any] | None = None) -> Any:
    """Return the object with a name in a loaded module, or None.

    Args:
        name: ``module:qualname``, with arguments in brackets for a parametrized model.
        find_part: Finds the parts of a parametrized model. Default: this function.
    """
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    is_module = issubclass(type(module), ModuleType)
    # Not by attribute: a module may compute its attributes, for example by importing.
    content: Any = object.__getattribute__(module, "__dict__") if is_module else {}
    if "[" in qualname:
        # A model whose arguments have no names is there under its own name if the module has written it.
        return content.get(qualname) or _parametrized(name, find_part or _find)
    first, *parts = qualname.split(".")
    value: Any = content.get(first)
    for part in parts:
        if not _is_class(value):
            return None
        value = member_of(value, part)
    return value


def _parametrized(name: str, find_part: Callable[[str], Any]) -> Any:
    """Return the parametrized model with a name, or None; ``find_part`` finds the classes in the name."""

    def find(part: str) -> Any:
        resolved_type = find_part(part)
        if resolved_type is None:
            # The class was moved or renamed.
            resolved_type = upgrade_of(part)
        if _is_class(resolved_type) or type(resolved_type) is NewType:
            return resolved_type
        raise UnreadableTypeError(part)

    try:
        model = read_type(name, find)
    except UnreadableTypeError:
        return None
    return model if parameters_of(model) is not None else None


def _is_class(value: Any) -> bool:
    # Not by isinstance, which asks the value for its class.
    return issubclass(type(value), type)


def member_of(cls: Any, name: str) -> Any:
    """Return the attribute that a class or a base of it defines, without running descriptors; else None."""
    for base in _mro(cls):
        members = _DICT(base)
        if name in members:
            return members[name]
    return None


# -- modules that may be imported ----------------------------------------------------

_METHODS = (staticmethod, classmethod)
_INSTALLED = ("site-packages", "dist-packages")
_PACKAGE = __name__.partition(".")[0]

_lock = threading.RLock()
_homes: set[str] = set()
"""Modules of the agent's own code."""
_named: set[str] = set()
"""Modules of the option ``state.modules``."""
_failed: dict[str, str] = {}
"""The error of each module that could not be imported, by its name."""


def allow_modules(homes: Iterable[str], named: str | None = None) -> None:
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
    """Import the allowed modules that may load ``module``; return True if it is loaded now."""
    with _lock:
        for name in _candidates(module):
            _import(name)
            if module in sys.modules:
                break
        return module in sys.modules


def why_not(module: str) -> str:
    """Return the reason why the module with a name is not loaded."""
    failed = _failed.get(module)
    return failed or f"the module {module!r} is not imported, and reading state imports none by its bytes"


def _import(name: str) -> None:
    """Import a module, once; remember why it failed."""
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
    # Read again if there are more modules than before: bytes may name many that do not exist.
    inner_imports = _read_imports(len(sys.modules), len(_homes))
    same_package = sorted(name for name in {*_homes, *inner_imports} if name.partition(".")[0] == top)
    # A module with another name may import it.
    yield from sorted(same_package, key=lambda name: (name != module, name))


@lru_cache(maxsize=1)
def _read_imports(modules: int, homes: int) -> frozenset[str]:
    """Return the modules that functions of the agent's own code import when they are called.

    Args:
        modules: The number of modules in memory. Both numbers are only keys of the cache.
        homes: The number of modules in which the agent's code is defined.
    """
    imports: set[str] = set()
    for name in own_modules():
        module = sys.modules[name]
        for code in _codes_of(module):
            imports.update(_imports_of(code, _text(vars(module).get("__package__"))))
    return frozenset(imports)


def own_modules() -> list[str]:
    """Return the loaded modules of the agent's own code, and those of the author that they use."""
    seen: dict[str, None] = {}
    unvisited = [name for name in _homes if name in sys.modules]
    while unvisited:
        name = unvisited.pop()
        module = sys.modules.get(name)
        if name in seen or not is_plain(module) or not _is_own(name, module):
            continue
        seen[name] = None
        for value in list(vars(module).values()):
            used = value.__name__ if is_plain(value) else _defined_in(value)
            if isinstance(used, str) and used in sys.modules:
                unvisited.append(used)
    return list(seen)


def is_plain(module: object) -> bool:
    """Return True if the content of ``module`` can be read without running its code."""
    return type(module) is ModuleType


def _is_own(name: str, module: Any) -> bool:
    """Return True for a module of the author: not of Python, of this package, or an installed one."""
    if name in _homes:
        return True
    top = name.partition(".")[0]
    if top == _PACKAGE or top in sys.stdlib_module_names:
        return False
    return not any(part in _text(vars(module).get("__file__")) for part in _INSTALLED)


def _defined_in(value: Any) -> Any:
    """Return the name of the module that defines a function or class; None for other values."""
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
    """Yield the names of the modules that a function may import, from its byte code.

    Args:
        code: The code of the function.
        package: The package of its module, for relative imports.
    """
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
    """Return a string as it is, and an empty one for any other value."""
    return value if isinstance(value, str) else ""


# -- classes that only a declared type gives -----------------------------------------
#
# Such as those of functions. Their names are part of the bytes like those of other classes. The code that
# reads the bytes declares the same type, which has the classes.

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_local_classes: ContextVar[LocalClasses | None] = ContextVar("flink_agents_local_classes", default=None)


class LocalClasses:
    """Names the classes of a declared type, and their subclasses, which no module has.

    Args:
        classes: The classes of the type.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self._names: dict[str, type] = {}
        for cls in classes:
            first_name = _name(cls)
            name = first_name
            count = 1
            while name in self._names:
                count += 1
                name = f"{first_name}#{count}"
            self._names[name] = cls
        self._by_class = {cls: name for name, cls in self._names.items()}

    @contextmanager
    def activate(self) -> Generator[None]:
        """Let the codec write and read values of these classes, in the present context."""
        token = _local_classes.set(self)
        try:
            yield
        finally:
            _local_classes.reset(token)

    def name_of(self, cls: type) -> str | None:
        """Return the name of one of the classes, or of a subclass of one; None for another class."""
        name = self._by_class.get(cls)
        if name is None and any(base in self._by_class for base in cls.__mro__):
            return _name(cls)
        return name

    def find(self, name: str) -> type | None:
        """Return the class, or the subclass, with a name; None if there is none."""
        # A copy of the type that was shipped to a worker may have several copies of one class.
        cls = self._names.get(name) or self._names.get(name.partition("#")[0])
        if cls is not None:
            return cls
        subclasses = [sub for base in self._by_class for sub in _subclasses(base) if _name(sub) == name]
        return subclasses[-1] if subclasses else None


def _name(cls: type) -> str:
    """Return the name of a class without the address of a function."""
    return _ADDRESS.sub("", name_of(cls))


def _subclasses(cls: Any) -> list[type]:
    direct: list[type] = type.__subclasses__(cls)
    return [sub for child in direct for sub in (child, *_subclasses(child))]
