"""Classes that a declared type gives, although they cannot be found by name, such as those of functions.

Their names are part of the bytes like those of other classes. The code that reads the bytes declares the same
type, which has the classes.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_known: ContextVar[LocalClasses | None] = ContextVar("flink_agents_local_classes", default=None)


class LocalClasses:
    """The classes of a declared type, and their subclasses.

    Args:
        classes: The classes.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self._names: dict[str, type] = {}
        for cls in classes:
            name = first = _name(cls)
            count = 1
            while name in self._names:
                count += 1
                name = f"{first}#{count}"
            self._names[name] = cls
        self._by_class = {cls: name for name, cls in self._names.items()}

    @contextmanager
    def known(self) -> Generator[None]:
        """Let the codec find these classes."""
        token = _known.set(self)
        try:
            yield
        finally:
            _known.reset(token)

    def name_of(self, cls: type) -> str | None:
        """Return the name of a class, or None."""
        name = self._by_class.get(cls)
        if name is None and any(base in self._by_class for base in cls.__mro__):
            return _name(cls)
        return name

    def find(self, name: str) -> type | None:
        """Return the class with a name, or None."""
        # A copy of the type that was shipped to a worker may have several copies of one class.
        cls = self._names.get(name) or self._names.get(name.partition("#")[0])
        if cls is not None:
            return cls
        subclasses = [sub for base in self._by_class for sub in _subclasses(base) if _name(sub) == name]
        return subclasses[-1] if subclasses else None


def local_name(cls: type) -> str | None:
    """Return the name of a class that the declared type gives, or None."""
    classes = _known.get()
    return None if classes is None else classes.name_of(cls)


def local_class(name: str) -> type | None:
    """Return the class with that name that the declared type gives, or None."""
    classes = _known.get()
    return None if classes is None else classes.find(name)


def _name(cls: type) -> str:
    return _ADDRESS.sub("", f"{cls.__module__}:{cls.__qualname__}")


def _subclasses(cls: Any) -> list[type]:
    direct: list[type] = type.__subclasses__(cls)
    return [sub for child in direct for sub in (child, *_subclasses(child))]
