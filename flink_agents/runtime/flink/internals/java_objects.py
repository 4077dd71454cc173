"""Java objects that no public API of PyFlink gives: private parts, and classes compiled from text.

Each part that the operator uses is compared with those of the supported releases before the first record. If
one is missing or differs, the job fails by an error that names it: there is no second way that needs less.

Some interfaces of Flink and of Kafka's client have no counterpart in Python: a class that implements one has
to be Java. Its text is part of a Python module, Flink's compiler of tables compiles it, and its bytes travel
with the job in a jar file, so that this package has no build step and no binary file.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from pyflink.datastream import RuntimeContext, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway
from pyflink.version import __version__ as pyflink_version

from flink_agents.api.errors import UnsupportedExecutionError
from flink_agents.runtime.flink import compat as flink_compat

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
    """Return an attribute of an object of PyFlink.

    Raises:
        UnsupportedExecutionError: It has none.
    """
    value = getattr(owner, name, None)
    if value is None:
        raise unfit_part_error(f"{type(owner).__name__} has no {name}")
    return value


def class_name(java: Any) -> str:
    """Return the name of the class of a Java object."""
    return str(java.getClass().getName())


def method_of(java: Any, name: str) -> Any:
    """Return a method of a Java object.

    Raises:
        UnsupportedExecutionError: It has none.
    """
    try:
        return getattr(java, name)
    except (AttributeError, SystemError):  # Pemja sets no error for a missing member.
        raise unfit_part_error(f"{class_name(java)} has no method {name}") from None


def field_of(java: Any, name: str) -> Any:
    """Return the accessible ``java.lang.reflect.Field`` of a Java object, of its class or a base class.

    Raises:
        UnsupportedExecutionError: There is none.
    """
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
    """Return Java's ``Environment`` of the task in which a function runs."""
    return field_value(read_attribute(context, "_runtime_context"), "taskEnvironment")


def task_of(context: RuntimeContext) -> Any:
    """Return Java's ``StreamTask`` in which a function runs."""
    return field_value(field_value(task_environment(context), "containingTask"), "invokable")


def find_caller(kind: type) -> Any:
    """Return the nearest object of a class whose method is on the call stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if type(caller) is kind:
            return caller
        frame = frame.f_back
    raise unfit_part_error(f"no {kind.__name__} has opened the function")


def loader_of(jars: Sequence[Path]) -> Any:
    """Return a class loader for Flink's classes and those of jar files."""
    gateway: Any = get_gateway()
    urls = gateway.new_array(gateway.jvm.java.net.URL, len(jars))
    for index, jar in enumerate(jars):
        urls[index] = gateway.jvm.java.net.URL(jar.as_uri())
    parent = gateway.jvm.java.lang.ClassLoader.getSystemClassLoader()
    return gateway.jvm.java.net.URLClassLoader(urls, parent)


class JavaClasses:
    """Compiled Java classes.

    Args:
        text: The text of the classes.
        loader: The class loader of the classes that they use.

    Raises:
        Py4JError: This version of Flink, or of a connector, is not supported.
    """

    def __init__(self, text: str, loader: Any) -> None:
        self._text = text
        gateway: Any = get_gateway()
        self._compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        self._compiler.setParentClassLoader(loader)
        self._compiler.cook(text)

    def create_object(self, name: str, argument: Any) -> Any:
        """Return an object of a class whose constructor takes one argument."""
        gateway: Any = get_gateway()
        arguments = gateway.new_array(gateway.jvm.Object, 1)
        arguments[0] = argument
        return self._compiler.getClassLoader().loadClass(name).getConstructors()[0].newInstance(arguments)

    def add_to(self, env: StreamExecutionEnvironment) -> None:
        """Add the classes to the jar files of a job."""
        jar = jar_folder() / f"{hashlib.sha256(self._text.encode()).hexdigest()[:16]}.jar"
        if not jar.exists():
            with zipfile.ZipFile(jar, "w") as archive:
                for name, code in self._compiler.getBytecodes().items():
                    archive.writestr(f"{str(name).replace('.', '/')}.class", bytes(code))
        flink_compat.add_jar(env, jar.as_uri())


_folders: list[Path] = []
"""Holds the folder of jar files, which jobs need. No cache, because renewed modules clear those."""


def jar_folder() -> Path:
    """Return the folder of this process's jar files; it is removed at the end of the process."""
    if not _folders:
        folder = tempfile.mkdtemp(prefix="flink-agents-java-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _folders.append(Path(folder))
    return _folders[0]
