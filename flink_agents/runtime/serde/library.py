"""Writes values of the standard library and of Pydantic: containers, paths, addresses, URLs, secrets, times.

Each is written with the name of its kind, in a table below, and its parts. Bytes can name no other class,
except a subclass of Pydantic's URLs, which the process has to have.

Datetimes and times are written with their zones. A part that ``isoformat()`` lacks follows after a bar: the
fold, and the zone, if that is more than an offset. A zone of ``zoneinfo`` has its key, a named offset its
name, one of Pydantic its seconds, and one of pytz or dateutil that with which its library returns it again.
Others are rejected: an offset would be an hour off after a change of clocks.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import datetime, time, timedelta, timezone, tzinfo
from importlib import import_module
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from pydantic_core import TzInfo

from flink_agents.api.errors import StateFormatError, UnserializableValueError
from flink_agents.runtime.serde.typenames import (
    find_class,
    find_type,
    is_data_class,
    name_of,
    shorten,
    stored_name,
)

LIBRARY = 17
"""The code of these values in the format."""

_FACTORIES = {
    kind.__name__: kind
    for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
    + (Counter, OrderedDict, defaultdict, deque)
}


class _Form(NamedTuple):
    """The way to write and read values of one class.

    Attributes:
        write: Returns the parts of a value, which the codec encodes.
        read: Returns the value, given its class and its parts.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any, Any], Any]


def writer_of(kind: type) -> Callable[[Any], tuple[int, Any]] | None:
    """Return the function that writes values of a class of a library; None for another class."""
    name = f"{kind.__module__.partition('.')[0]}:{kind.__qualname__}"
    if _is_url(kind):
        return lambda value: (LIBRARY, ["url", [name_of(kind), str(value)]])
    form = _FORMS.get(name)
    if form is None or _class_of(name) is not kind:
        return None
    return lambda value: (LIBRARY, [name, form.write(value)])


def read_value(content: list[Any]) -> Any:
    """Return the value from the content that :func:`writer_of`'s function wrote: name and parts.

    Raises:
        StateFormatError: This version does not know the name.
    """
    name, parts = content
    if name == "url":
        return _read_url(*parts)
    form = _FORMS.get(name)
    if form is None:
        raise StateFormatError("state holds a value of an unknown kind", found=shorten(name))
    return form.read(_class_of(name), parts)


def _class_of(name: str) -> Any:
    """Return the class with a name of ``_FORMS``; None if its module lacks it."""
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
    """Return the name of a defaultdict's factory (None without one), and its content."""
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
    """Return the key of a ``ZoneInfo``, such as ``Europe/Berlin``; reject one without a key."""
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
"""The forms of classes, by top-level package and name of the class."""


# -- times and their zones -----------------------------------------------------------

_FIXED = "fixed:"
_PYDANTIC = "pydantic:"
_PYTZ = "pytz:"
_DATEUTIL = "dateutil:"
"""Beginnings of zones that are no keys of ``zoneinfo``, which have no colons."""

_UTC = "tzutc()"
_LOCAL = "tzlocal()"
"""Zones of dateutil without a name."""

_FROM_PYTZ = ("_p", "_UTC", "FixedOffset")
"""Functions with which pytz restores its zones from pickles."""


def write_time(value: datetime | time) -> bytes:
    """Return a datetime or a time as bytes.

    Raises:
        UnserializableValueError: Its time zone cannot be restored.
    """
    zone = value.tzinfo
    if zone is None or (type(zone) is timezone and _name_of_offset(zone) is None):
        return f"{value.isoformat()}|{value.fold}".encode() if value.fold else value.isoformat().encode()
    zone_text = zone.key if type(zone) is ZoneInfo and zone.key else _written_zone(value, zone)
    return f"{value.replace(tzinfo=None).isoformat()}|{value.fold}|{zone_text}".encode(
        "utf-8", "surrogatepass"
    )


def time_reader(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """Return the function that reads what :func:`write_time` wrote.

    Args:
        parse: Returns a datetime or time from its ``isoformat()``.
    """

    def read(data: bytes) -> Any:
        text, _, suffix = data.decode("utf-8", "surrogatepass").partition("|")
        value = parse(text)
        if not suffix:
            return value
        fold, _, zone = suffix.partition("|")
        value = value.replace(fold=int(fold))
        return _in_zone(value, zone) if zone else value

    return read


def _name_of_offset(zone: timezone) -> str | None:
    """Return the name of an offset; None if it has only the name that follows from the offset."""
    arguments: tuple[Any, ...] = zone.__getinitargs__()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    return arguments[1] if len(arguments) > 1 else None


def _written_zone(value: datetime | time, zone: tzinfo) -> str:
    """Return the text of the zone of a value; reject a zone that would not come back the same."""
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        return f"{_FIXED}{write_timedelta(offset)}:{_name_of_offset(zone)}"
    if value.utcoffset() is None:
        raise UnserializableValueError(
            f"state cannot hold a {type(value).__name__} whose time zone has no offset",
            expected="a ZoneInfo or a fixed offset",
            fix="use zoneinfo.ZoneInfo",
        )
    zone_text = _name_of(zone)
    if zone_text is not None and _is_same(value, _in_zone(value.replace(tzinfo=None), zone_text)):
        return zone_text
    raise UnserializableValueError(
        f"state cannot hold a {type(value).__name__} with the time zone {zone!r}",
        expected="a zoneinfo.ZoneInfo, a datetime.timezone, or a zone that pytz or dateutil returns by name",
        fix="use zoneinfo.ZoneInfo, or convert it: value.astimezone(zoneinfo.ZoneInfo('Europe/Berlin'))",
    )


def _is_same(value: datetime | time, restored: datetime | time) -> bool:
    """Return True if a restored datetime or time has the offset of the original, and an equal zone."""
    return value.utcoffset() == restored.utcoffset() and (
        value.tzinfo == restored.tzinfo or repr(value.tzinfo) == repr(restored.tzinfo)
    )


def write_timedelta(offset: timedelta) -> str:
    """Return a timedelta as text: days, seconds and microseconds."""
    return f"{offset.days} {offset.seconds} {offset.microseconds}"


def read_timedelta(text: str | bytes) -> timedelta:
    """Return the timedelta that :func:`write_timedelta` wrote."""
    return timedelta(*map(int, text.split()))


def _name_of(zone: tzinfo) -> str | None:
    """Return the text with which the library of a zone returns it again; None for other zones."""
    if type(zone) is TzInfo:
        return f"{_PYDANTIC}{write_timedelta(zone.utcoffset(None) or timedelta(0))}"
    package = type(zone).__module__.partition(".")[0]
    if package == "pytz":
        # Its zones have an object for each of their offsets.
        make, arguments, *_ = zone.__reduce__()
        name: str = getattr(make, "__name__", "")
        return f"{_PYTZ}{json.dumps([name, *arguments])}" if name in _FROM_PYTZ else None
    return _name_of_dateutil(zone) if package == "dateutil" else None


def _name_of_dateutil(zone: Any) -> str | None:
    """Return the text for a zone of dateutil; None for one that depends on the machine or has no name."""
    kind = type(zone).__name__
    if kind == "tzutc":
        return f"{_DATEUTIL}{_UTC}"
    if kind == "tzlocal":
        # Its parser returns this for "Z" where the machine's zone is UTC.
        return f"{_DATEUTIL}{_LOCAL}" if _is_utc(zone) else None
    if kind == "tzoffset":
        return f"{_DATEUTIL}{write_timedelta(zone.utcoffset(None))}:{zone.tzname(None) or ''}"
    # The library keeps the file of a zone, whose name follows that of its folder.
    _, separator, name = str(getattr(zone, "_filename", "")).rpartition("zoneinfo/")
    return f"{_DATEUTIL}{name}" if kind == "tzfile" and separator else None


def _is_utc(zone: Any) -> bool:
    """Return True if a zone of dateutil equals UTC."""
    from dateutil import tz

    return zone == tz.tzutc()


def _in_zone(value: Any, zone: str) -> Any:
    """Return a datetime or time with the zone of a text that :func:`write_time` has written.

    Raises:
        LookupError: The library has no such zone.
    """
    if zone.startswith(_FIXED):
        offset, _, name = zone.removeprefix(_FIXED).partition(":")
        return value.replace(tzinfo=timezone(read_timedelta(offset), name))
    if zone.startswith(_PYDANTIC):
        return value.replace(tzinfo=TzInfo(read_timedelta(zone.removeprefix(_PYDANTIC)).total_seconds()))
    if zone.startswith(_PYTZ):
        import pytz

        name, *arguments = json.loads(zone.removeprefix(_PYTZ))
        if name not in _FROM_PYTZ:
            raise LookupError(f"pytz has no time zone {zone!r}")
        return value.replace(tzinfo=getattr(pytz, name)(*arguments))
    if zone.startswith(_DATEUTIL):
        from dateutil import tz

        text = zone.removeprefix(_DATEUTIL)
        if text == _LOCAL and _is_utc(tz.tzlocal()):
            return value.replace(tzinfo=tz.tzlocal())
        if text in (_UTC, _LOCAL):
            return value.replace(tzinfo=tz.tzutc())
        offset, colon, name = text.partition(":")
        time_zone = tz.tzoffset(name or None, read_timedelta(offset)) if colon else tz.gettz(text)
        if time_zone is None:
            raise LookupError(f"dateutil has no time zone {text!r}")
        return value.replace(tzinfo=time_zone)
    return value.replace(tzinfo=ZoneInfo(zone))
