"""Providers: named objects of this package, or of entry points of other distributions.

An entry point identifies a provider, so a name can be checked without an import of its object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from flink_agents.api.errors import AgentsError

T = TypeVar("T")


@dataclass(frozen=True)
class Providers:
    """The providers of one kind of thing, such as stores or trace sinks.

    Attributes:
        group: The group of entry points in which distributions register providers.
        what: The kind of thing in words, such as ``store``, for errors.
        error: Class of the error if a name has no working provider.
        built_in: Providers of this package, ``module:attribute`` by name; these names are reserved. Those
            of layers above this one are added by ``flink_agents/built_in.py``.
    """

    group: str
    what: str
    error: type[AgentsError]
    built_in: dict[str, str] = field(default_factory=dict[str, str])

    def __contains__(self, name: str) -> bool:
        # Finding entry points reads a file of each installed distribution.
        return name in self.built_in or name in self.names()

    def names(self) -> list[str]:
        """Return all names that have a provider, sorted."""
        return sorted({*self.built_in, *(point.name for point in entry_points(group=self.group))})

    def find(self, name: str) -> EntryPoint:
        """Return the entry point of the provider of ``name``; nothing is imported.

        Raises:
            AgentsError: There is no provider, or there are several.
        """
        if name in self.built_in:
            return EntryPoint(name, self.built_in[name], self.group)
        points = list(entry_points(group=self.group, name=name))
        if len({point.value for point in points}) == 1:
            return points[0]
        several = f"several distributions provide a {self.what} {name!r}"
        raise self.error(
            several if points else f"unknown {self.what} {name!r}",
            expected=f"one of {', '.join(self.names())}",
            found=", ".join(point.value for point in points) or name,
            fix=f"install a distribution with one entry point {name!r} in the group {self.group}",
        )

    def load(self, name: str) -> Any:
        """Import and return the provider ``name``, the object of its entry point.

        Raises:
            AgentsError: There is no provider, or it cannot be imported.
        """
        point = self.find(name)
        try:
            return point.load()
        except Exception as error:  # a foreign module can raise anything when it is imported
            raise self.error(
                f"the provider of {self.what} {name!r} cannot be imported",
                found=f"{point.value}: {type(error).__name__}: {error}",
                fix="install its requirements, also on the workers of the cluster",
            ) from error

    def create_object(self, name: str, kind: type[T], *arguments: Any) -> T:
        """Call the provider ``name``, and return the object that it creates.

        Args:
            name: Name of the provider.
            kind: The required class of the result.
            *arguments: The arguments of the call.

        Raises:
            AgentsError: There is no provider, it cannot be imported, or the result has another class.
        """
        result = self.load(name)(*arguments)
        if isinstance(result, kind):
            return result
        thing = self.what.rpartition(" ")[2]
        raise self.error(
            f"the provider of {self.what} {name!r} is invalid: it returned a value that is not a {thing}",
            expected=f"an object of a subclass of {kind.__name__}",
            found=type(result).__name__,
            fix=f"correct its entry point in the group {self.group}",
        )


@dataclass
class LateFunction:
    """A function of a layer above, which is imported when it is first called.

    Attributes:
        name: ``module:function``; ``flink_agents/built_in.py`` sets it.
    """

    name: str = ""

    def __call__(self, *arguments: Any) -> Any:
        """Import the function, call it, and return its result."""
        module, _, name = self.name.partition(":")
        return getattr(import_module(module), name)(*arguments)
