"""A Flink distribution made from the installed PyFlink, on which jobs of Python follow one another.

    home = FlinkHome.make(Path("flink"), {"rest.port": 8081})
    subprocess.Popen(home.command("jobmanager"), env=home.environment())
    subprocess.Popen(home.command("taskmanager"), env=home.environment())
    subprocess.run([*home.flink("run"), "-py", "job.py"], env=home.environment())

A TaskManager loads the native library of pemja with the first Python job, and a JVM loads a native library
for one class loader only. Flink gives each job a class loader of its own, so that a second job could not
load it. Here the library belongs to the class loader of Flink itself: PyFlink's jar lies in ``lib``, and
its classes are taken from there (:data:`SHARED_CLASSES`), also where a job brings the jar again.

    python -m flink_agents.runtime.flink.launch.flink_home DIRECTORY

makes the same for a shell, with the options of the environment variable ``FLINK_PROPERTIES``, and prints it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml

import flink_agents
from flink_agents.api.errors import SetupError
from flink_agents.runtime.flink.launch.jvm import find_java_home
from flink_agents.runtime.flink.launch.packages import DISTRIBUTION

PARENT_FIRST = "classloader.parent-first-patterns.additional"
"""Flink's option for classes that a job does not bring itself."""

SHARED_CLASSES = ("pemja.", "py4j.")
"""What all jobs of a process share: the owner of the native library, and the gateway."""

PYTHON_JAR = "flink-python"
"""How the name of the jar begins in which both are."""

_LINKED = ("lib", "opt", "plugins")
_SCRIPTS = ("jobmanager", "taskmanager", "flink")
_DISTRIBUTION_JAR = "flink-dist*.jar"

Part = Literal["jobmanager", "taskmanager"]


@dataclass(frozen=True)
class FlinkHome:
    """The directories ``bin``, ``lib``, ``opt``, ``plugins``, ``conf``, ``log`` and ``tmp``.

    Scripts are copies, since they look for the rest beside themselves; jars are links to PyFlink's.

    Attributes:
        root: Where they are.
        conf: Where the configuration is, if not in ``root``.
        log: Where logs go, if not into ``root``.
    """

    root: Path
    conf: Path
    log: Path

    @classmethod
    def make(
        cls,
        root: Path,
        options: Mapping[str, Any] | None = None,
        *,
        conf: Path | None = None,
        log: Path | None = None,
        pyflink: Path | None = None,
    ) -> FlinkHome:
        """Make the directories, or make them again where they are there already.

        Args:
            root: Where. What else is in there stays, such as the user's own jars in ``lib``.
            options: Flink's options, over those of the package. None leaves a configuration as it is
                that is there already.
            conf: Where the configuration goes, if not to ``root``.
            log: Where logs go, if not to ``root``.
            pyflink: Directory of the package ``pyflink``; by default the installed one.

        Raises:
            SetupError: There is no PyFlink, or it lacks its jars.
        """
        root = root.absolute()
        source = pyflink or pyflink_directory()
        home = cls(root, (conf or root / "conf").absolute(), (log or root / "log").absolute())
        for directory in (home.log, root / "tmp"):
            directory.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:
            _link_all(source / name, root / name)
        _link(python_jar(source), root / "lib")
        shutil.copytree(source / "bin", root / "bin", dirs_exist_ok=True)
        for name in _SCRIPTS:
            script = root / "bin" / (name if name == "flink" else f"{name}.sh")
            script.chmod(script.stat().st_mode | 0o111)
        if options is not None or not (home.conf / "config.yaml").exists():
            home.conf.mkdir(parents=True, exist_ok=True)
            _copy_new(source / "conf", home.conf)
            write_configuration(source / "conf" / "config.yaml", home.conf / "config.yaml", options or {})
        return home

    def command(self, part: Part, *arguments: str) -> list[str]:
        """Return what runs a part of a cluster in the foreground; the script becomes Java by ``exec``."""
        return [str(self.root / "bin" / f"{part}.sh"), "start-foreground", *arguments]

    def flink(self, *arguments: str) -> list[str]:
        """Run Flink's command line, for example ``flink("run", "-py", "job.py")``."""
        return [str(self.root / "bin" / "flink"), *arguments]

    @property
    def python_jar(self) -> Path:
        """PyFlink's jar, for a client that names it to a job."""
        return python_jar(self.root)

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return what the commands need: this Python and a Java, and nothing of another Flink.

        Args:
            environ: What to begin with; ``os.environ`` by default. What it says about Python is left out.

        Raises:
            JavaNotFoundError: There is no Java runtime that Flink can use.
        """
        given = os.environ if environ is None else environ
        inherited = {name: value for name, value in given.items() if not name.startswith("PY")}
        return inherited | {
            # The package that makes this, wherever it is installed from.
            "PYTHONPATH": str(Path(flink_agents.__file__).parent.parent),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", os.defpath)]),
            "JAVA_HOME": str(find_java_home().home),
            # PyFlink sets those of the package in a process that uses it, and Flink's scripts obey them.
            "FLINK_HOME": str(self.root),
            "FLINK_LIB_DIR": str(self.root / "lib"),
            "FLINK_OPT_DIR": str(self.root / "opt"),
            "FLINK_PLUGINS_DIR": str(self.root / "plugins"),
            "FLINK_CONF_DIR": str(self.conf),
            "FLINK_LOG_DIR": str(self.log),
            "FLINK_PID_DIR": str(self.root / "tmp"),
        }


def pyflink_directory() -> Path:
    """Return where the installed package ``pyflink`` is.

    Raises:
        SetupError: It is not installed.
    """
    spec = find_spec("pyflink")
    if spec is None or spec.origin is None:
        raise _not_found("no package pyflink")
    return Path(spec.origin).parent


def python_jar(directory: Path) -> Path:
    """Return the jar of PyFlink, of which a distribution has one copy in ``opt``.

    Raises:
        SetupError: There is none.
    """
    found = sorted((directory / "opt").glob(f"{PYTHON_JAR}*.jar"))
    if len(found) != 1:
        raise _not_found(f"{len(found)} files opt/{PYTHON_JAR}*.jar in {directory}")
    return found[0]


def _not_found(found: str) -> SetupError:
    return SetupError(
        "There is no Flink to make a cluster from.",
        expected="the package pyflink with its directories bin, conf, lib and opt",
        found=found,
        fix=f"pip install --force-reinstall {DISTRIBUTION} apache-flink apache-flink-libraries",
    )


# -- files --------------------------------------------------------------------------------


def _link_all(source: Path, target: Path) -> None:
    """Link all that is in ``source`` into ``target``; what the user has put there stays."""
    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        if path.is_symlink() and not path.exists():
            path.unlink()  # of a PyFlink that was replaced
    if source.is_dir():
        for path in source.iterdir():
            _link(path, target)
    if target.name == "lib" and not list(target.glob(_DISTRIBUTION_JAR)):
        raise _not_found(f"no lib/{_DISTRIBUTION_JAR} in {source.parent}")


def _link(path: Path, directory: Path) -> None:
    link, found = directory / path.name, path.resolve()
    if link.is_symlink() and link.resolve() != found:
        link.unlink()
    # A process of the cluster may be about to open what is there already.
    if not link.exists():
        link.symlink_to(found)


def _copy_new(source: Path, target: Path) -> None:
    """Copy the files that ``target`` does not have: the user may have changed how Flink logs."""
    for path in source.iterdir():
        if path.is_file() and not (target / path.name).exists():
            shutil.copy(path, target)


# -- configuration ------------------------------------------------------------------------


def write_configuration(packaged: Path, path: Path, options: Mapping[str, Any]) -> None:
    """Write ``config.yaml``.

    Args:
        packaged: The file of the package.
        path: The new one.
        options: What goes over it, by full name; None takes an option away.
    """
    known = dict(flat(yaml.safe_load(packaged.read_text(encoding="utf-8")) or {}))
    merged = {name: value for name, value in {**known, **dict(flat(options))}.items() if value is not None}
    path.write_text(yaml.safe_dump(with_shared_classes(merged)), encoding="utf-8")


def with_shared_classes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` with :data:`SHARED_CLASSES` beside the patterns that they have."""
    given = [one for one in str(options.get(PARENT_FIRST) or "").split(";") if one]
    missing = [one for one in SHARED_CLASSES if one not in given]
    return {**options, PARENT_FIRST: ";".join([*given, *missing])}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options of a nested configuration by their full names."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def main(arguments: list[str]) -> int:
    """Make a distribution for ``docker/flink-service``, and print where it is."""
    (root,) = arguments
    given = os.environ.get("FLINK_PROPERTIES", "").strip()
    options: dict[str, Any] | None = None
    if given:
        # Of one machine only; a container has a name of its own.
        options = {"taskmanager.host": None, **dict(flat(yaml.safe_load(given)))}
    conf, log = (os.environ.get(name) for name in ("FLINK_CONF_DIR", "FLINK_LOG_DIR"))
    home = FlinkHome.make(
        Path(root), options, conf=Path(conf) if conf else None, log=Path(log) if log else None
    )
    print(home.root)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
