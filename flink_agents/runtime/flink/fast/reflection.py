"""Reads parts of Python and Java objects that are not public; a part that is missing has an error by name."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from pyflink.datastream import RuntimeContext


class Unfit(Exception):
    """A part differs from its known shape; the message names it."""


def read_attribute(owner: Any, name: str) -> Any:
    """Return an attribute of a Python object."""
    value = getattr(owner, name, None)
    if value is None:
        raise Unfit(f"{type(owner).__name__} has no {name}")
    return value


def class_name(java: Any) -> str:
    """Return the name of the class of a Java object."""
    return str(java.getClass().getName())


def method_of(java: Any, name: str) -> Any:
    """Return a method of a Java object."""
    try:
        return getattr(java, name)
    except (AttributeError, SystemError):  # Pemja sets no error for a missing member.
        raise Unfit(f"{class_name(java)} has no method {name}") from None


def field_of(java: Any, name: str) -> Any:
    """Return a field of a Java object, of its class or a base class."""
    kind = java.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if str(field.getName()) == name:
                field.setAccessible(True)
                return field
        kind = kind.getSuperclass()
    raise Unfit(f"{class_name(java)} has no field {name}")


def field_value(java: Any, name: str) -> Any:
    """Return the value of a field of a Java object."""
    return field_of(java, name).get(java)


def task_environment(context: RuntimeContext) -> Any:
    """Return the environment of the task in which a function runs."""
    return field_value(read_attribute(context, "_runtime_context"), "taskEnvironment")


def task_of(context: RuntimeContext) -> Any:
    """Return the task in which a function runs."""
    return field_value(field_value(task_environment(context), "containingTask"), "invokable")


def find_caller(kind: type) -> Any:
    """Return the object of a class whose method has called the present one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if type(caller) is kind:
            return caller
        frame = frame.f_back
    raise Unfit(f"no {kind.__name__} has opened the function")
