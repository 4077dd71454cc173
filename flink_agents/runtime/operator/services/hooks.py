"""The hooks at which the operator calls several key services, each resolved once.

A hook is a tuple of bound methods, in the order of the services, and empty if no service implements it. What
only one feature does is no hook: the operator calls it by its name, see ``features``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Hooked(Protocol):
    """The part of a service that this module uses."""

    receives: type | None
    receive: Callable[..., Any]


class Hooks:
    """The hooks of one operator. Only for Flink's task thread.

    Args:
        services: The services, in the order in which they are called.
        base: Their base class: a method that a service inherits from it is not called.

    Attributes:
        services: The services.
        receivers: Methods for records that are not inputs, by their type.
    """

    restored: tuple[Callable[..., bool], ...]
    blocked: tuple[Callable[..., None], ...]
    fired: tuple[Callable[..., None], ...]

    def __init__(self, services: Iterable[Hooked], base: type) -> None:
        self.services = tuple(services)
        self.receivers: dict[type, Callable[..., Any]] = {
            service.receives: service.receive for service in self.services if service.receives is not None
        }
        for name in HOOKS:
            hooks = [getattr(service, name) for service in self.services]
            inherited = getattr(base, name)
            own_hooks = (hook for hook in hooks if hook.__func__ is not inherited)
            setattr(self, name, tuple(own_hooks))


HOOKS = tuple(Hooks.__annotations__)
"""The names of the hooks, as ``KeyService`` documents them."""
