"""Writes values of the standard library and of Pydantic: containers, paths, addresses, URLs, secrets.

Each is written with the name of its kind, in the table below, and its parts. Bytes can name no other class,
except a subclass of Pydantic's URLs, which the process has to have.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from flink_agents.api.errors import StateFormatError, UnserializableValueError
from flink_agents.runtime.serde.typenames import find_class, find_type, is_data_class, shorten, stored_name

LIBRARY = 17
"""The code of these values in the format."""

_FACTORIES = {
    kind.__name__: kind
    for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
    + (Counter, OrderedDict, defaultdict, deque)
}


class _Form(NamedTuple):
    """The form of a kind of value.

    Attributes:
        write: Returns the parts of a value.
        read: Returns a value of a class from its parts.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any, Any], Any]


def writer_of(kind: type) -> Callable[[Any], tuple[int, Any]] | None:
    """Return the function that writes values of a class of a library; None for another class."""
    name = f"{kind.__module__.partition('.')[0]}:{kind.__qualname__}"
    if _is_url(kind):
        return lambda value: (LIBRARY, ["url", [f"{kind.__module__}:{kind.__qualname__}", str(value)]])
    form = _FORMS.get(name)
    if form is None or _class_of(name) is not kind:
        return None
    return lambda value: (LIBRARY, [name, form.write(value)])


def read_value(content: list[Any]) -> Any:
    """Return the value for what a writer wrote."""
    name, parts = content
    if name == "url":
        return _read_url(*parts)
    form = _FORMS.get(name)
    if form is None:
        raise StateFormatError("state holds a value of an unknown kind", found=shorten(name))
    return form.read(_class_of(name), parts)


def _class_of(name: str) -> Any:
    module, _, qualname = name.partition(":")
    return getattr(import_module(module), qualname, None)


# -- URLs ----------------------------------------------------------------------------


def _is_url(kind: Any) -> bool:
    """Return True for Pydantic's URLs. Each of them has a module of its own, if it is used at all."""
    networks = sys.modules.get("pydantic.networks")
    bases = (getattr(networks, "_BaseUrl", None), getattr(networks, "_BaseMultiHostUrl", None))
    return any(base in kind.__mro__ for base in bases if base is not None)


def _read_url(name: str, text: str) -> Any:
    import_module("pydantic.networks")
    kind = find_class(name)
    if not _is_url(kind):
        raise StateFormatError("state holds a URL of an unknown class", found=shorten(name))
    return kind(text)  # pyright: ignore[reportOptionalCall]


# -- containers ----------------------------------------------------------------------


def _write_default_dict(value: Any) -> Any:
    factory = value.default_factory
    if factory is None or _FACTORIES.get(getattr(factory, "__name__", "")) is factory:
        return [factory and factory.__name__, dict(value)]
    if is_data_class(factory):
        return [stored_name(factory), dict(value)]
    raise UnserializableValueError(
        "state cannot hold a defaultdict whose default_factory is a function",
        expected=f"None, a data class, or one of {', '.join(_FACTORIES)}",
        found=shorten(factory),
        fix="use such a factory, or store a plain dict",
    )


def _read_default_dict(cls: Any, parts: Any) -> Any:
    name, content = parts
    factory = None if name is None else _FACTORIES.get(name) or find_type(name)
    if name is not None and factory is None:
        raise StateFormatError("state holds a defaultdict with an unknown factory", found=shorten(name))
    return cls(factory, content)


# -- others --------------------------------------------------------------------------


def _write_zone(value: Any) -> str:
    if value.key is None:
        raise UnserializableValueError(
            "state cannot hold a time zone without a name",
            expected="zoneinfo.ZoneInfo('Europe/Berlin')",
            found=shorten(value),
            fix="create it by its name",
        )
    return value.key


_TEXT = _Form(str, lambda cls, text: cls(text))
_SECRET = _Form(lambda value: value.get_secret_value(), lambda cls, content: cls(content))

_FORMS = {
    "builtins:complex": _Form(lambda value: [value.real, value.imag], lambda cls, parts: cls(*parts)),
    "collections:Counter": _Form(dict, lambda cls, counts: cls(counts)),
    "collections:OrderedDict": _Form(
        lambda value: list(map(list, value.items())), lambda cls, pairs: cls(pairs)
    ),
    "collections:defaultdict": _Form(_write_default_dict, _read_default_dict),
    "collections:deque": _Form(
        lambda value: [value.maxlen, list(value)], lambda cls, parts: cls(parts[1], parts[0])
    ),
    "fractions:Fraction": _Form(
        lambda value: [value.numerator, value.denominator], lambda cls, parts: cls(*parts)
    ),
    **{
        f"ipaddress:IP{version}{kind}": _TEXT
        for version in ("v4", "v6")
        for kind in ("Address", "Interface", "Network")
    },
    **{f"pathlib:{kind}": _TEXT for kind in ("PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath")},
    "pydantic:ByteSize": _Form(int, lambda cls, number: cls(number)),
    "pydantic:NameEmail": _Form(lambda value: [value.name, value.email], lambda cls, parts: cls(*parts)),
    "pydantic:Secret": _SECRET,
    "pydantic:SecretBytes": _SECRET,
    "pydantic:SecretStr": _SECRET,
    "pydantic_core:MultiHostUrl": _TEXT,
    "pydantic_core:Url": _TEXT,
    "re:Pattern": _Form(
        lambda value: [value.pattern, value.flags],
        lambda cls, parts: import_module("re").compile(parts[0], parts[1]),
    ),
    "zoneinfo:ZoneInfo": _Form(_write_zone, lambda cls, key: cls(key)),
}
"""The kinds of values, by their public names."""
