"""The hooks at which the operator calls its key services, each resolved once.

A hook is a tuple of bound methods, in the order of the services. It is empty if no service implements it, so
a feature that an agent does not use costs nothing.
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

    Attributes:
        receivers: Methods for records that are not inputs, by their type.
        services: The services, in the order in which they are called.
    """

    restored: tuple[Callable[..., bool], ...]
    unchecked: tuple[Callable[..., Iterable[Any]], ...]
    check: tuple[Callable[..., None], ...]
    arriving: tuple[Callable[..., None], ...]
    blocked: tuple[Callable[..., None], ...]
    stored: tuple[Callable[..., None], ...]
    found: tuple[Callable[..., None], ...]
    waking_skipped: tuple[Callable[..., None], ...]
    acting: tuple[Callable[..., None], ...]
    fired: tuple[Callable[..., None], ...]
    sent: tuple[Callable[..., None], ...]
    leaving: tuple[Callable[..., None], ...]
    skipping: tuple[Callable[..., None], ...]
    ending: tuple[Callable[..., None], ...]
    writing_head: tuple[Callable[..., None], ...]
    committed: tuple[Callable[..., None], ...]
    heartbeat: tuple[Callable[..., None], ...]
    look: tuple[Callable[..., None], ...]
    is_looking: tuple[Callable[..., bool], ...]

    def __init__(self) -> None:
        self.receivers: dict[type, Callable[..., Any]] = {}
        self.services: tuple[Hooked, ...] = ()
        self.resolve((), object)

    def resolve(self, services: Iterable[Hooked], base: type) -> None:
        """Find the services that implement each hook.

        Args:
            services: The services, in the order in which they are called.
            base: Their base class: a method that a service inherits from it is not called.
        """
        self.services = tuple(services)
        self.receivers = {
            service.receives: service.receive for service in self.services if service.receives is not None
        }
        for name in HOOKS:
            hooks = [getattr(service, name) for service in self.services]
            inherited = getattr(base, name, None)
            own_hooks = (hook for hook in hooks if getattr(hook, "__func__", hook) is not inherited)
            setattr(self, name, tuple(own_hooks))


HOOKS = tuple(Hooks.__annotations__)
"""The names of the hooks, as ``KeyService`` documents them."""
