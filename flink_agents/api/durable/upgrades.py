"""Upgrades of stored values: the successor of a class that has changed.

State, journals, signals and delayed events store values with the name of their class. If a class was moved,
renamed, or changed so that its stored values no longer fit, declare its successor::

    @upgrades("shop.orders:Order")
    class Purchase(BaseModel):            # values of the old class become values of this one
        id: str
        total: Decimal


    @upgrades("shop.orders:Money")
    def money(fields: dict[str, Any]) -> Money:       # or: you make the new value yourself
        return Money(cents=round(fields["amount"] * 100))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flink_agents.api.common.places import place_of, place_of_class
from flink_agents.api.errors import DuplicateNameError, WrongArgumentError

T = TypeVar("T", bound=Callable[..., Any])

Upgrade = Callable[..., Any]
"""A class that replaces the old one, or a function that returns the new value."""

_upgrades: dict[str, Upgrade] = {}
"""All registered upgrades, by the name ``module:Name`` of the old class."""


def upgrades(*names: str) -> Callable[[T], T]:
    """Declare the stored classes that a class or a function replaces.

    A class gets the stored fields as they are. A function is called with the stored fields, a dict by field
    name (for an enum, the name of the member), and returns the new value. Both are used only for values that
    the class of that name does not fit: the class is gone, or its fields, their types or its kind have
    changed since the value was stored. Fields that hold other stored values have been upgraded already.

    Define it in the module of the agent, or in one that this imports, so that workers have it.

    Args:
        names: The classes as state names them, ``module:Name``; a class of a main script is
            ``__main__:Name``.

    Raises:
        WrongArgumentError: A name has another form, or the decorated object cannot be called.
        DuplicateNameError: That class already has a replacement.
    """
    if not names:
        raise _arguments_error(names, "no names")
    for name in names:
        if not is_class_name(name):
            raise _arguments_error(names, repr(name))

    def register(target: T) -> T:
        if not callable(target):
            raise _arguments_error(names, f"{type(target).__name__} {target!r}")
        for name in names:
            register_upgrade(name, target)
        return target

    return register


def register_upgrade(name: str, target: Upgrade) -> None:
    """Register ``target`` as the replacement of the stored class ``name``.

    Raises:
        DuplicateNameError: The class already has another replacement.
    """
    registered_target = _upgrades.get(name)
    # A reloaded module defines the same target again.
    if registered_target is not None and _target_identity(registered_target) != _target_identity(target):
        raise DuplicateNameError(
            f"stored values of {name} have two upgrades",
            found=f"{place_of_upgrade(registered_target)}, {place_of_upgrade(target)}",
            fix="keep one of them",
            where=place_of_upgrade(target),
        )
    _upgrades[name] = target


def replace_upgrade(name: str, target: Upgrade) -> None:
    """Register ``target`` as the replacement of the stored class ``name``, even if it has another one."""
    _upgrades[name] = target


def upgrade_of(name: str) -> Upgrade | None:
    """Return the replacement of the stored class ``name`` (``module:Name``), or None."""
    return _upgrades.get(name)


def all_upgrades() -> dict[str, Upgrade]:
    """Return a copy of all upgrades, by the name ``module:Name`` of the old class."""
    return dict(_upgrades)


def place_of_upgrade(target: Upgrade) -> str:
    """Return the place of an upgrade in the author's code, as ``file:line in name``."""
    return place_of_class(target) if isinstance(target, type) else place_of(target)


def is_class_name(name: object) -> bool:
    """Return True if ``name`` is a string of the form ``module:Name``, perhaps with arguments in brackets."""
    if not isinstance(name, str):
        return False
    # A parametrized model has the names of its arguments in brackets.
    name = name.partition("[")[0]
    return name.count(":") == 1 and all(name.split(":"))


def _target_identity(target: Upgrade) -> tuple[object, object]:
    """Return module and name, which a reloaded module gives to the same target again."""
    return getattr(target, "__module__", None), getattr(target, "__qualname__", id(target))


def _arguments_error(names: tuple[object, ...], found: str) -> WrongArgumentError:
    return WrongArgumentError(
        "upgrades() needs the names of stored classes, and decorates a class or a function",
        expected="for example @upgrades('shop.orders:Order')",
        found=found,
        fix="write the module, a colon and the name of the class, as in the error message",
    )
