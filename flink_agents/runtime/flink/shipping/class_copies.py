"""Corrects cloudpickle: it copies classes of main scripts as they are, and errors name what it cannot pickle.

cloudpickle writes a class that no module can be imported for (one of a main script, a notebook or a function)
by value. Its copies differ from the class: dataclasses have no fields, enums no aliases and no data of their
constructors, slots and nested names are gone. If the process that reads it has the class already, cloudpickle
overwrites the class with that copy, which is what happens in the test kit.

Importing this module corrects that for the whole process. The pickled bytes name functions of this module, so
that readers need no preparation.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import io
import operator
import sys
import types
import typing
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, Flag
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import cloudpickle
from cloudpickle import cloudpickle as trackers
from pydantic import BaseModel

from flink_agents.api.common.places import authors_place, is_users_code, place_of
from flink_agents.api.durable.type_texts import parameters_of
from flink_agents.api.errors import UnshippableCodeError
from flink_agents.runtime.serde import typenames

_PROCESS = uuid.uuid4().hex
"""Identifies this process: a class that was written here is the same one if it is read here."""

_reducers: Any = sys.modules[cloudpickle.CloudPickler.__module__]
"""The module that looks up cloudpickle's reducers."""

_unfilled: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes that were created from bytes, and have no content yet."""

_ENUM_MACHINERY = frozenset(
    (
        *("_generate_next_value_", "_iter_member_", "_member_map_", "_member_names_", "_member_type_"),
        *("_hashable_values_", "_unhashable_values_", "_unhashable_values_map_", "_value2member_map_"),
    )
)
"""Attributes that the metaclass of enums creates again."""

_MEMBER_MACHINERY = frozenset(("_value_", "_name_", "__objclass__", "_sort_order_"))
"""Attributes of a member that the metaclass sets."""


# dataclasses identifies its markers by identity: a copy of one would make a field unknown.
_marks: Any = dataclasses
for _name in ("_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR", "MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY"):
    copyreg.pickle(type(getattr(_marks, _name)), lambda mark: (getattr, (dataclasses, _name_of(mark))))

# A function with functools.singledispatch has one.
copyreg.pickle(weakref.WeakKeyDictionary, lambda entries: (weakref.WeakKeyDictionary, (dict(entries),)))


def _name_of(mark: Any) -> str:
    return next(name for name, value in vars(dataclasses).items() if value is mark)


def _make_cached_property(function: Any, name: str) -> functools.cached_property[Any]:
    cached_property = functools.cached_property[Any](function)
    cached_property.__set_name__(object, name)
    return cached_property


# Python 3.11 gives it a lock, which cannot be pickled.
copyreg.pickle(
    functools.cached_property,
    lambda cached_property: (_make_cached_property, (cached_property.func, cached_property.attrname)),
)


def _make_cache(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _make_new_type(name: str, supertype: Any, module: str) -> Any:
    make: Any = typing.NewType
    new_type = make(name, supertype)
    new_type.__module__ = module
    return new_type


def _unless_by_name(value: Any, by_value: tuple[Any, ...]) -> str | tuple[Any, ...]:
    """Return the reduction of a value that Python pickles by its name, which a worker may not have."""
    if trackers._lookup_module_and_qualname(value) is None:
        return by_value
    return value.__reduce__()


copyreg.pickle(
    type(_make_cache(len, 1, False)),
    lambda cached_function: _unless_by_name(
        cached_function,
        (_make_cache, (cached_function.__wrapped__, *cached_function.cache_parameters().values())),
    ),
)
copyreg.pickle(
    typing.NewType,
    lambda new_type: _unless_by_name(
        new_type, (_make_new_type, (new_type.__name__, new_type.__supertype__, new_type.__module__))
    ),
)


def _reduce_model_class(cls: Any) -> str | tuple[Any, ...]:
    """Return the reduction of a model's class by its name, or of a parametrized one by its arguments.

    Only the process that has written the parametrization has a class of its name, and not even that one if it
    was written inside a function.
    """
    return _reduce_parametrized(cls) or cls.__qualname__


def _reduce_parametrized(cls: Any) -> tuple[Any, ...] | None:
    parameters = parameters_of(cls)
    if parameters is None:
        return None
    generic, arguments = parameters
    return operator.getitem, (generic, arguments[0] if len(arguments) == 1 else arguments)


copyreg.pickle(type(BaseModel), _reduce_model_class)


def _reduce_class(cls: Any) -> tuple[Any, ...]:
    """Return the reduction of a class by value, in place of cloudpickle's."""
    parametrized = _reduce_parametrized(cls)
    if parametrized is not None:
        return parametrized
    if cls.__module__ == "__main__" and cls not in trackers._DYNAMIC_CLASS_TRACKER_BY_CLASS:
        # A notebook may have replaced the class of that name.
        typenames.resolve_type.cache_clear()
    tracker = trackers._get_or_create_tracker_id(cls)
    content, _ = _reducers._class_getstate(cls)
    if issubclass(cls, Enum):
        members = cls._member_map_
        for name in (*members, *_ENUM_MACHINERY):
            content.pop(name, None)
        state = (_PROCESS, content, _members_of(cls))
        return _make_enum, (tracker, *_enum_arguments(cls)), state, None, None, _fill_class
    arguments = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    if "__slots__" in vars(cls) and not _is_named_tuple(cls):
        arguments["__slots__"] = cls.__slots__
    made_of = (type(cls), cls.__name__, _reducers._get_bases(cls), arguments)
    return _make_class, (tracker, *made_of), (_PROCESS, content, None), None, None, _fill_class


def _is_named_tuple(cls: type) -> bool:
    # Its metaclass sets the slots, and no other may be given.
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _make_class(tracker: str, metaclass: Any, name: str, bases: Any, content: dict[str, Any]) -> type:
    """Return the class that cloudpickle identifies by ``tracker``; create it empty if it is missing."""
    existing = trackers._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
    if existing is not None:
        return existing
    with _without_hook(bases):
        new_class = types.new_class(
            name, bases, {"metaclass": metaclass}, lambda names: names.update(content)
        )
    return _track_class(tracker, new_class)


@contextmanager
def _without_hook(bases: tuple[Any, ...]) -> Iterator[None]:
    """Create a subclass without ``__init_subclass__`` of a copied class.

    It ran where the class was defined, with arguments that are not kept. The copies have its effects.
    """
    classes: Any = (cls for base in bases for cls in getattr(base, "__mro__", ()))
    owner: Any = next((cls for cls in classes if "__init_subclass__" in vars(cls)), None)
    if owner not in trackers._DYNAMIC_CLASS_TRACKER_BY_CLASS:
        yield
        return
    hook = vars(owner)["__init_subclass__"]
    type.__setattr__(owner, "__init_subclass__", classmethod(lambda cls, **options: None))
    try:
        yield
    finally:
        type.__setattr__(owner, "__init_subclass__", hook)


def _track_class(tracker: str, new_class: type) -> type:
    _unfilled.add(new_class)
    return trackers._lookup_class_or_track(tracker, new_class)


def _fill_class(cls: Any, state: tuple[str, dict[str, Any], Mapping[str, tuple[Any, ...]] | None]) -> None:
    """Give a class its content, unless it is the class that was written."""
    process, content, members = state
    if process == _PROCESS and cls not in _unfilled:
        return
    if members is not None:
        _fill_enum(cls, members, content)
    else:
        _reducers._class_setstate(cls, (content, {}))
    _unfilled.discard(cls)


# -- enums --------------------------------------------------------------------------------


class _Member:
    """A member of an enum before it has its value.

    Args:
        arguments: Arguments of the constructor of its data type, such as ``str``.
        value: Its value in a flag. Otherwise a number, as values can refer to the class.
    """

    def __init__(self, arguments: tuple[Any, ...], value: int) -> None:
        self.arguments = arguments
        self.value = value


def _enum_arguments(cls: Any) -> tuple[Any, ...]:
    members = {
        name: (_data_of(cls, member), member._value_ if issubclass(cls, Flag) else number)
        for number, (name, member) in enumerate(cls._member_map_.items())
        if member._name_ == name
    }
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls), cls.__name__, cls.__bases__, names, members, getattr(cls, "_boundary_", None)


def _data_of(cls: Any, member: Any) -> tuple[Any, ...]:
    """Return the arguments with which the data type of an enum makes the data of a member."""
    data_type = cls._member_type_
    if data_type.__new__ is object.__new__:
        return ()
    arguments = getattr(data_type, "__getnewargs__", None)
    return tuple(arguments(member) if arguments else data_type.__reduce_ex__(member, 2)[1])


def _members_of(cls: Any) -> dict[str, tuple[Any, ...]]:
    """Return the name, the value and the attributes of the member that each name leads to."""
    return {
        name: (
            member._name_,
            member._value_,
            {key: value for key, value in vars(member).items() if key not in _MEMBER_MACHINERY},
        )
        for name, member in cls._member_map_.items()
    }


def _make_enum(
    tracker: str,
    metaclass: Any,
    name: str,
    bases: Any,
    names: dict[str, str],
    members: dict[str, tuple[tuple[Any, ...], int]],
    boundary: Any,
) -> type:
    """Return the enum that cloudpickle identifies by ``tracker``; create it if this process lacks it."""
    existing = trackers._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
    if existing is not None:
        return existing

    def create(cls: Any, prepared: Any) -> Any:
        if isinstance(prepared, tuple):
            # As an enum of tuples gets its values.
            (prepared,) = prepared
        member = cls._member_type_.__new__(cls, *prepared.arguments)
        member._value_ = prepared.value
        return member

    content = metaclass.__prepare__(name, bases)
    for key, value in names.items():
        content[key] = value
    if members:
        content["__new__"] = create
        # Not that of a base: attributes of members come with the state.
        content["__init__"] = lambda self, *arguments: None
    for key, (arguments, value) in members.items():
        content[key] = _Member(arguments, value)
    options = {} if boundary is None else {"boundary": boundary}
    enum_class = metaclass.__new__(metaclass, name, bases, content, **options)
    for key in ("__init__", "__new_member__", "_new_member_"):
        if key in vars(enum_class):
            type.__delattr__(enum_class, key)
    return _track_class(tracker, enum_class)


def _fill_enum(cls: Any, members: Mapping[str, tuple[Any, ...]], content: dict[str, Any]) -> None:
    by_name = dict(cls._member_map_)
    is_flag = issubclass(cls, Flag)
    machinery: Any = cls
    if not is_flag:
        machinery._value2member_map_.clear()
    machinery._member_map_.clear()
    for name, (canonical, value, attributes) in members.items():
        member = by_name[canonical]
        cls._member_map_[name] = member
        if name != canonical:
            type.__setattr__(cls, name, member)
            continue
        member._value_ = value
        vars(member).update(attributes)
        try:
            cls._value2member_map_.setdefault(value, member)
        except TypeError:
            # The lookup of such a value compares it with all members.
            machinery._unhashable_values_.append(value)
    for name, value in content.items():
        type.__setattr__(cls, name, value)


_reducers._dynamic_class_reduce = _reduce_class
_reduce_type_variable: Any = cloudpickle.CloudPickler.dispatch_table[typing.TypeVar]


def _reduce_with_default(variable: Any) -> tuple[Any, ...]:
    """Return the reduction of a type variable with its default, which cloudpickle drops."""
    reduced = _reduce_type_variable(variable)
    default = getattr(variable, "__default__", None)
    return reduced if default is None or len(reduced) > 2 else (*reduced, {"__default__": default})


_table: Any = cloudpickle.CloudPickler.dispatch_table
_table[typing.TypeVar] = _reduce_with_default


class _NamingFunctions(cloudpickle.Pickler):
    """Writes the global functions of the main script by name, so that they keep their globals."""

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object: the name of a global function."""
        if type(obj) is types.FunctionType and obj.__module__ == "__main__":
            if getattr(sys.modules["__main__"], obj.__qualname__, None) is obj:
                return obj.__qualname__
        return super().reducer_override(obj)


def dump_for_this_process(value: object) -> bytes:
    """Return the pickled form of a value for this process, which has the functions of the main script."""
    written = io.BytesIO()
    _NamingFunctions(written).dump(value)
    return written.getvalue()


_MOST_STEPS = 50

_FIX = (
    "create it where you use it: an agent declares it with @client, a function opens it itself; or move it "
    "to a separate module, which workers import"
)


class _Part(NamedTuple):
    """A part of a value.

    Attributes:
        value: The part.
        label: Its name in the whole, to display; empty if the user has not named it.
        holder: The function that uses it by that name, or None.
    """

    value: Any
    label: str
    holder: FunctionType | None = None


def check_shippable(what: str, value: Any) -> None:
    """Check that a value can be shipped to workers.

    Args:
        what: A description of the value, for messages.
        value: The value.

    Raises:
        UnshippableCodeError: A part of it cannot be pickled; the message names the part.
    """
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        path = _path_to_culprit(value)
        named = next((part for part in path if part.label and not _is_code(part.value)), None)
        holder = next((part.holder for part in reversed(path) if part.holder is not None), None)
        kind = type(named.value if named is not None else path[-1].value if path else value)
        type_name = f"{kind.__module__}.{kind.__qualname__}"
        label = f"{named.label}, " if named is not None else ""
        raise UnshippableCodeError(
            f"{what} uses an object that cannot be sent to the workers: {label}{type_name}",
            expected="functions and values that can be pickled",
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            fix=_FIX,
            where=place_of(holder) if holder is not None else authors_place(),
        ) from error


def _is_code(value: Any) -> bool:
    is_ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    return is_ours or isinstance(
        value, FunctionType | MethodType | type | functools.partial | dict | list | tuple
    )


def _path_to_culprit(value: Any) -> list[_Part]:
    """Return the parts that cannot be pickled, from the outermost to the innermost."""
    path: list[_Part] = []
    seen = {id(value)}
    while len(path) < _MOST_STEPS:
        for part in _find_parts(value):
            if id(part.value) in seen:
                continue
            seen.add(id(part.value))
            try:
                cloudpickle.dumps(part.value)
            except Exception:
                path.append(part)
                value = part.value
                break
        else:
            return path
    return path


def _find_parts(value: Any) -> Iterator[_Part]:
    if isinstance(value, MethodType):
        yield _Part(value.__func__, "")
        yield _Part(value.__self__, "")
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, type):
        for name, attribute in list(vars(value).items()):
            inner = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
            yield _Part(inner, f"the class attribute {value.__qualname__}.{name}")
    elif isinstance(value, functools.partial):
        yield _Part(value.func, "")
        yield from (_Part(argument, f"an argument of partial({value.func!r})") for argument in value.args)
        yield from (_Part(argument, f"the argument {name!r}") for name, argument in value.keywords.items())
    elif isinstance(value, dict):
        yield from (_Part(entry, f"the entry {name!r}"[:100]) for name, entry in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (_Part(member, "") for member in value)
    else:
        yield from _parts_of_object(value)


def _parts_of_object(value: Any) -> Iterator[_Part]:
    is_ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    slots = {name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())}
    for name in (*getattr(value, "__dict__", {}), *slots):
        try:
            part = getattr(value, name)
        except Exception:
            continue
        yield _Part(part, "" if is_ours else f"the attribute {type(value).__qualname__}.{name}")


def _parts_of_function(function: FunctionType) -> Iterator[_Part]:
    """Yield the objects that are pickled with a function: closure, globals, defaults and attributes."""
    holder = function if is_users_code(function.__code__) else None
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield _Part(cell.cell_contents, f"the variable {name!r} around {function.__qualname__}", holder)
        except ValueError:
            continue  # The variable has no value yet.
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield _Part(function.__globals__[name], f"the global {name!r}", holder)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield _Part(default, f"a default of {function.__qualname__}", holder)
    yield from (
        _Part(attribute, f"the attribute {name!r} of a function", holder)
        for name, attribute in vars(function).items()
    )


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
