"""Copies what an exception refers to, such as the response of a service, so that handlers find it on replay.

State holds values of data classes alone. An exception of an HTTP client refers to objects of other classes,
and handlers read a status, headers or a text from them. Such an object is recorded with its class and its
attributes, and restored without calling its constructor. Connections and streams are left out, by name.
"""

from __future__ import annotations

import io
import sys
import tempfile
import threading
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, SimpleNamespace
from typing import Any

from flink_agents import redaction
from flink_agents.api.errors import StateError
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.typenames import find_class, member_of, name_of

DEEPEST = 8
"""The most levels of objects inside each other that are recorded."""

MOST_OBJECTS = 1_000
"""The most objects that are recorded of one exception."""

LONGEST_BODY = 256 * 1024
"""Bytes that are read from the open response of an exception."""

ERROR = "error"
"""The kind of an exception that another one refers to."""

_SCALARS = (int, float, str, bytes)
"""Types that a value of a subclass is recorded as."""
_RESOURCE = ("close", "aclose", "__enter__", "__aenter__", "__next__", "__anext__", "__call__", "__await__")
"""Methods of objects that hold something outside of the process."""

_STATUS = ("status_code", "status")
"""Attributes with the status of a response; the names of common HTTP clients."""

_METHODS = FunctionType, BuiltinFunctionType, MethodType


@dataclass(slots=True)
class RecordedObject:
    """An object of a class whose values state does not hold.

    Attributes:
        kind: The name of its class, a key of ``_FORMS``, or ``ERROR``.
        content: Its attributes by name, or what the form makes it from.
    """

    kind: str
    content: Any


class _LeftOut(Exception):
    """A part of an exception cannot be recorded, and is replaced by None."""


# -- forms of values whose classes are not written in Python, or have more than their attributes ----------


@dataclass(frozen=True)
class _Form:
    """The way to record values of a class.

    Attributes:
        read: Returns the content of a value: plain values, or other parts.
        make: Returns the value for that content.
    """

    read: Callable[[Any], Any]
    make: Callable[[Any], Any]


def _items(value: Any) -> list[list[Any]]:
    """Return the pairs of a mapping that may have a key several times, such as headers."""
    return [list(item) for item in value.items()]


def _header_maker(name: str) -> Callable[[Any], Any]:
    """Return the function that makes a message with headers; ``name`` is its class, ``module:Name``."""

    def make_message(pairs: list[Any]) -> Any:
        message = getattr(import_module(name.partition(":")[0]), name.partition(":")[2])()
        for key, value in pairs:
            message.add_header(key, value)
        return message

    return make_message


def _maker_of(package: str, *names: str) -> Callable[[Any], Any]:
    """Return the function that makes a value by calling classes of a package, from the innermost on."""

    def make_value(content: Any) -> Any:
        module = import_module(package)
        for name in names:
            content = getattr(module, name)(content)
        return content

    return make_value


def _read_nothing(value: Any) -> None:
    """Return None: the form needs no content."""


def _read_stream(stream: Any) -> Any:
    """Return the unread content of a stream in memory, without moving it; None if it is closed."""
    if stream.closed:
        return None
    start = stream.tell()
    content = stream.read()
    stream.seek(start)
    return content


def _stream_maker(kind: Any) -> Callable[[Any], Any]:
    def make_stream(content: Any) -> Any:
        stream = kind(content)
        if content is None:
            stream.close()
        return stream

    return make_stream


def _read_attempt(attempt: Any) -> list[Any]:
    """Return number, error and result of an attempt of tenacity."""
    error = attempt.exception(0)
    return [attempt.attempt_number, error, attempt.result(0) if error is None else None]


def _make_attempt(content: list[Any]) -> Any:
    number, error, result = content
    attempt = import_module("tenacity").Future(number)
    attempt.set_result(result) if error is None else attempt.set_exception(error)
    return attempt


_FORMS: dict[str, _Form] = {
    "multidict:MultiDict": _Form(_items, _maker_of("multidict", "MultiDict")),
    "multidict:CIMultiDict": _Form(_items, _maker_of("multidict", "CIMultiDict")),
    "multidict:MultiDictProxy": _Form(_items, _maker_of("multidict", "MultiDict", "MultiDictProxy")),
    "multidict:CIMultiDictProxy": _Form(_items, _maker_of("multidict", "CIMultiDict", "CIMultiDictProxy")),
    # Cookies are credentials.
    "requests:RequestsCookieJar": _Form(
        _read_nothing, lambda _: import_module("requests").cookies.RequestsCookieJar()
    ),
    "yarl:URL": _Form(str, _maker_of("yarl", "URL")),
    "httpx:URL": _Form(str, _maker_of("httpx", "URL")),
    "httpx2:URL": _Form(str, _maker_of("httpx2", "URL")),
    "email:Message": _Form(_items, _header_maker("email.message:Message")),
    "http:HTTPMessage": _Form(_items, _header_maker("http.client:HTTPMessage")),
    "types:SimpleNamespace": _Form(
        lambda value: dict(vars(value)), lambda content: SimpleNamespace(**content)
    ),
    "builtins:bytearray": _Form(bytes, bytearray),
    "builtins:mappingproxy": _Form(dict, MappingProxyType),
    "collections:OrderedDict": _Form(dict, OrderedDict),
    "collections:defaultdict": _Form(dict, lambda content: defaultdict(None, content)),
    "collections:deque": _Form(list, deque),
    "_io:BytesIO": _Form(_read_stream, _stream_maker(io.BytesIO)),
    # A free lock, as that of a call of gRPC.
    "_thread:lock": _Form(_read_nothing, lambda _: threading.Lock()),
    "_thread:RLock": _Form(_read_nothing, lambda _: threading.RLock()),
    "threading:Condition": _Form(_read_nothing, lambda _: threading.Condition()),
    # Closes an exception of urllib, whose body is in memory by then.
    "tempfile:_TemporaryFileCloser": _Form(
        _read_nothing, lambda _: tempfile._TemporaryFileWrapper(io.BytesIO(), "", False)._closer
    ),
    # The last attempt of tenacity.
    "tenacity:Future": _Form(_read_attempt, _make_attempt),
    "_io:StringIO": _Form(_read_stream, _stream_maker(io.StringIO)),
}
"""The forms by top-level package and name of the class."""


def _form_of(cls: type) -> str | None:
    """Return the key of a class in ``_FORMS``; None if it has no form."""
    name = f"{cls.__module__.partition('.')[0]}:{cls.__qualname__}"
    return name if name in _FORMS else None


# -- objects --------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _is_restorable(cls: type) -> bool:
    """Return True if an instance can be restored from its attributes, without running code of the class."""
    package = cls.__module__.partition(".")[0]
    if type(cls) not in (type, ABCMeta) or package in sys.stdlib_module_names or package == "flink_agents":
        return False
    return cls.__new__ is object.__new__ and member_of(cls, "__del__") is None


def slots_of(cls: type) -> Iterator[str]:
    """Yield the names of the attributes in slots of a class and its bases, with private names mangled."""
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{slot}" if private else slot


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, from its dictionary and slots, without running code."""
    attributes: dict[str, Any] = {}
    for name in slots_of(type(value)):
        with suppress(AttributeError):
            attributes[name] = object.__getattribute__(value, name)
    for name in ("__dict__", "__weakref__"):
        attributes.pop(name, None)
    with suppress(AttributeError):
        attributes.update(object.__getattribute__(value, "__dict__"))
    return attributes


def _holds_resource(cls: type, attributes: Mapping[str, Any]) -> bool:
    """Return True for a connection, a client, a lock or a stream, but not for a response of a service."""

    def has(name: str) -> bool:
        return name in attributes or member_of(cls, name) is not None

    return any(map(has, _RESOURCE)) and not (has("headers") and any(map(has, _STATUS)))


class Copies:
    """Copies the parts of one exception for its record.

    Args:
        codec: Decides which values state can hold.
        describe: Returns the recorded form of another exception, given the ids of the objects around it.
        inside: Ids of the exception and the objects around it.

    Attributes:
        left_out: The paths of the parts that the record lacks, such as ``response.raw``.
    """

    def __init__(
        self,
        codec: ValueCodec,
        describe: Callable[[BaseException, tuple[int, ...]], dict[str, Any]],
        inside: tuple[int, ...],
    ) -> None:
        self.left_out: list[str] = []
        self._codec = codec
        self._describe = describe
        self._inside = list(inside)
        self._count = 0

    def copy_attributes(self, content: Mapping[str, Any], delegates: bool = False) -> dict[str, Any]:
        """Return attributes of an exception; None in place of those that cannot be recorded.

        Args:
            content: The attributes by name.
            delegates: True if the class looks for missing attributes in another object. Such classes may keep
                the methods that they find there. Without them, they find those of the restored object.
        """
        return {
            name: self.copy_part(value, name)
            for name, value in content.items()
            if not (delegates and isinstance(value, _METHODS))
        }

    def copy_part(self, value: Any, path: str) -> Any:
        """Return a value that state can hold; None if it cannot be recorded."""
        try:
            return self._copy(value, path)
        except (_LeftOut, RecursionError):
            # Private parts of an object are its own affair.
            if "._" not in path:
                self.left_out.append(path)
            return None

    def _copy(self, value: Any, path: str) -> Any:
        """Return a value that state can hold; raise ``_LeftOut`` if it cannot be recorded."""
        stored = self._storable(value)
        if stored is not _NOT_STORABLE:
            return stored
        self._count += 1
        if len(self._inside) > DEEPEST or self._count > MOST_OBJECTS or id(value) in self._inside:
            raise _LeftOut
        self._inside.append(id(value))
        try:
            return self._copy_parts(value, path)
        finally:
            self._inside.pop()

    def _storable(self, value: Any) -> Any:
        """Return ``value`` without secrets if state can hold it, else ``_NOT_STORABLE``."""
        try:
            # Before secrets are hidden, which makes plain values of collections of other classes.
            self._codec.encode(value)
            hidden = _without_credentials(redaction.hidden(value))
            data = self._codec.encode(hidden)
        except (StateError, RecursionError):
            return _NOT_STORABLE
        if redaction.knows_any() and redaction.shows(data.decode("utf-8", "replace")):
            # In an object that cannot be changed.
            raise _LeftOut
        return hidden

    def _copy_parts(self, value: Any, path: str) -> Any:
        """Return a copy of a value that state cannot hold, made of copies of its parts."""
        cls: Any = type(value)
        if isinstance(value, BaseException):
            return RecordedObject(ERROR, self._describe(value, tuple(self._inside[:-1])))
        if cls is dict:
            return self._copy_dict(value, path)
        if cls in (list, tuple):
            return _without_credentials(
                cls(self.copy_part(item, f"{path}[{at}]") for at, item in enumerate(value))
            )
        if (form := _form_of(cls)) is not None:
            return RecordedObject(form, self.copy_part(self._content(form, value), path))
        scalar: Any = next((base for base in _SCALARS if isinstance(value, base)), None)
        if scalar is not None:
            return self._storable(scalar.__new__(scalar, value))
        if (
            isinstance(value, tuple)
            and member_of(cls, "_fields") is not None
            and find_class(name_of(cls)) is cls
        ):
            fields: Any = zip(cls._fields, value, strict=True)
            return RecordedObject(
                name_of(cls), [self.copy_part(item, f"{path}.{name}") for name, item in fields]
            )
        attributes = _attributes(value)
        if not _is_restorable(cls) or find_class(name_of(cls)) is not cls or _holds_resource(cls, attributes):
            raise _LeftOut
        return RecordedObject(
            name_of(cls), {name: self.copy_part(part, f"{path}.{name}") for name, part in attributes.items()}
        )

    @staticmethod
    def _content(form: str, value: Any) -> Any:
        try:
            return _FORMS[form].read(value)
        except Exception:
            # Such as a stream that cannot be read in this state.
            raise _LeftOut from None

    def _copy_dict(self, value: dict[Any, Any], path: str) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        for key, item in value.items():
            if self._storable(key) is _NOT_STORABLE:
                raise _LeftOut
            copied[key] = self.copy_part(item, f"{path}[{key!r}]"[:100])
        return _without_credentials(copied)


_NOT_STORABLE = object()


def _without_credentials(value: Any) -> Any:
    """Return ``value`` with asterisks for credentials in headers: in mappings, and in lists of pairs."""
    kind: Any = type(value)
    if kind in (list, tuple):
        if 2 <= len(value) <= 3 and redaction.is_secret_name(value[0]) and isinstance(value[-1], str | bytes):
            hidden = redaction.HIDDEN
            return kind([*value[:-1], hidden if isinstance(value[-1], str) else hidden.encode()])
        return kind(map(_without_credentials, value))
    if kind is deque:
        return deque(map(_without_credentials, value), value.maxlen)
    if kind in (dict, OrderedDict, defaultdict):
        changed = value.copy()
        changed.update((key, _without_credentials(item)) for key, item in value.items())
        return changed
    return value


class Restored:
    """Restores the parts of one exception from its record.

    Args:
        rebuild: Returns another exception, which is a part, for its recorded form.

    Attributes:
        missing: The names of classes that this program does not have.
    """

    def __init__(self, rebuild: Callable[[dict[str, Any]], BaseException]) -> None:
        self.missing: set[str] = set()
        self._rebuild = rebuild

    def restore_part(self, value: Any) -> Any:
        """Return a part for its recorded form; None for an object that cannot be restored."""
        kind: Any = type(value)
        if kind is dict:
            return {key: self.restore_part(item) for key, item in value.items()}
        if kind in (list, tuple):
            return kind(map(self.restore_part, value))
        return self._restore_object(value) if kind is RecordedObject else value

    def _restore_object(self, recorded: RecordedObject) -> Any:
        """Return an object for its recorded form; None, after noting its class, if that is impossible."""
        if recorded.kind == ERROR:
            return self._rebuild(recorded.content)
        content = self.restore_part(recorded.content)
        try:
            if recorded.kind in _FORMS:
                return _FORMS[recorded.kind].make(content)
            return _make_object(recorded.kind, content)
        except Exception:
            # Code of a library that may have changed since.
            self.missing.add(recorded.kind)
            return None


def _make_object(name: str, content: Any) -> Any:
    """Return an instance of a named class with these attributes or items, without its constructor.

    Raises:
        LookupError: The program lacks the class, or its instances are not restorable.
    """
    cls: Any = find_class(name)
    if cls is None:
        raise LookupError(name)
    if issubclass(cls, tuple):
        return tuple.__new__(cls, content)
    if not _is_restorable(cls):
        raise LookupError(name)
    instance: Any = object.__new__(cls)
    for attribute, value in content.items():
        object.__setattr__(instance, attribute, value)
    return instance


# -- responses that are still open ------------------------------------------------------------


def read_response(error: BaseException) -> None:
    """Read the body of the response of an exception of urllib or requests into memory; others have none.

    Call it in the thread that made the request. It may wait for the service.

    Its response is a connection, which neither another thread nor a replay has.
    """
    # Not through classes of libraries, which may look for a missing attribute anywhere, and raise anything.
    attributes: dict[str, Any] = object.__getattribute__(error, "__dict__")
    if isinstance(error, _class_of("requests", "RequestException")):
        _read_streamed(attributes.get("response"))
    if not isinstance(error, _class_of("urllib.error", "HTTPError")):
        return
    connection = attributes.get("fp")
    if connection is None or isinstance(connection, io.BytesIO | io.StringIO):
        return
    try:
        body = connection.read(LONGEST_BODY)
        connection.close()
    except Exception:
        # The connection is gone. The status and the headers are there.
        body = b""
    attributes["fp"] = attributes["file"] = io.BytesIO(body)


def _read_streamed(response: Any) -> None:
    """Read the body of a response of requests that was made with ``stream=True`` and is not read."""
    if not isinstance(response, _class_of("requests", "Response")) or response._content_consumed:
        return
    try:
        body = response.raw.read(LONGEST_BODY, decode_content=True)
        response.close()
    except Exception:
        body = b""
    response._content = body
    response._content_consumed = True


def _class_of(module: str, name: str) -> Any:
    """Return a class for ``isinstance``; an empty tuple, which has no instances, if it is not loaded."""
    return getattr(sys.modules.get(module), name, ())
