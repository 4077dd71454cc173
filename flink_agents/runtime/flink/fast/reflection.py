"""Reads parts of Python and Java objects that are not public; a part that is missing has an error by name.

Each part that the operator uses is compared with those of the supported releases before the first record. If
one differs, the job fails: there is no second way that needs less.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from pyflink.datastream import RuntimeContext
from pyflink.version import __version__ as pyflink_version

from flink_agents.api.errors import UnsupportedExecutionError

VERSIONS = ("2.3.",)
"""Supported releases of PyFlink and Flink, by prefix."""


def unfit_part_error(part: str) -> UnsupportedExecutionError:
    """Return the error that a part of PyFlink or Flink differs from its known shape.

    Args:
        part: The part, and how it differs.
    """
    releases = " or ".join(f"{prefix}*" for prefix in VERSIONS)
    return UnsupportedExecutionError(
        "agents do not run on this release of PyFlink or Flink",
        expected=f"PyFlink and Flink {releases}",
        found=part,
        fix=f"install apache-flink {releases} where the job starts and on all workers, and use a cluster of "
        "that release",
    )


def check_version() -> None:
    """Check that PyFlink's version is supported.

    Raises:
        UnsupportedExecutionError: It is another version.
    """
    if not pyflink_version.startswith(VERSIONS):
        raise unfit_part_error(f"PyFlink {pyflink_version}")


def read_attribute(owner: Any, name: str) -> Any:
    """Return an attribute of a Python object."""
    value = getattr(owner, name, None)
    if value is None:
        raise unfit_part_error(f"{type(owner).__name__} has no {name}")
    return value


def class_name(java: Any) -> str:
    """Return the name of the class of a Java object."""
    return str(java.getClass().getName())


def method_of(java: Any, name: str) -> Any:
    """Return a method of a Java object."""
    try:
        return getattr(java, name)
    except (AttributeError, SystemError):  # Pemja sets no error for a missing member.
        raise unfit_part_error(f"{class_name(java)} has no method {name}") from None


def field_of(java: Any, name: str) -> Any:
    """Return a field of a Java object, of its class or a base class."""
    kind = java.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if str(field.getName()) == name:
                field.setAccessible(True)
                return field
        kind = kind.getSuperclass()
    raise unfit_part_error(f"{class_name(java)} has no field {name}")


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
    raise unfit_part_error(f"no {kind.__name__} has opened the function")
