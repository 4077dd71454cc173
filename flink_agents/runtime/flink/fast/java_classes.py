"""Java classes of a job, compiled from text by the compiler of Flink's tables.

Some interfaces of Flink and of Kafka's client have no counterpart in Python: a class that implements one has
to be Java. Its text is part of a Python module, and its bytes travel with the job in a jar file, so that this
package has no build step and no binary file.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyflink.datastream import StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink import compat as flink_compat


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
