"""A Flink distribution made from the installed PyFlink, which can run several Python jobs in turn.

    home = FlinkHome.create(Path("flink"), {"rest.port": 8081})
    subprocess.Popen(home.command("jobmanager"), env=home.environment())
    subprocess.Popen(home.command("taskmanager"), env=home.environment())
    subprocess.run([*home.flink("run"), "-py", "job.py"], env=home.environment())

A TaskManager loads Pemja's native library with the first Python job, and a JVM loads a native library
for one class loader only. Flink gives each job its own class loader, so a second job could not
load it. Here the library belongs to Flink's own class loader: PyFlink's jar is in ``lib``, and
its classes are taken from there (:data:`SHARED_CLASSES`), even if a job brings the jar again.

    python -m flink_agents.runtime.flink.launch.flink_home DIRECTORY

makes one for a shell, with the options of the environment variable ``FLINK_PROPERTIES``, and prints it.
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

from flink_agents.api.common.installation import install_command
from flink_agents.api.errors import SetupError
from flink_agents.runtime.flink.launch.beam import prepare_workers
from flink_agents.runtime.flink.launch.jvm import find_java_home

PARENT_FIRST = "classloader.parent-first-patterns.additional"
"""Flink's option for classes that are not loaded from the job."""

SHARED_CLASSES = ("pemja.", "py4j.")
"""The classes that all jobs of a process share: the owner of the native library, and the gateway."""

PYTHON_JAR = "flink-python"
"""Prefix of the name of the jar with both."""

_LINKED = ("lib", "opt", "plugins")
_SCRIPTS = ("jobmanager", "taskmanager", "flink")
_DISTRIBUTION_JAR = "flink-dist*.jar"

Part = Literal["jobmanager", "taskmanager"]


@dataclass(frozen=True)
class FlinkHome:
    """The directories ``bin``, ``lib``, ``opt``, ``plugins``, ``conf``, ``log`` and ``tmp``.

    Scripts are copies, since they look for the rest next to themselves; jars are links to PyFlink's.

    Attributes:
        root: The directory that contains them.
        conf: Where the configuration is, if not in ``root``.
        log: Where logs go, if not into ``root``.
    """

    root: Path
    conf: Path
    log: Path

    @classmethod
    def create(
        cls,
        root: Path,
        options: Mapping[str, Any] | None = None,
        *,
        conf: Path | None = None,
        log: Path | None = None,
        pyflink: Path | None = None,
    ) -> FlinkHome:
        """Create the directories; existing ones are updated.

        Args:
            root: The directory. Other files in it stay, such as your own jars in ``lib``.
            options: Flink's options, which override the packaged ones. None keeps an existing
                configuration as it is.
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
        _link_directory(python_jar(source), root / "lib")
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
        """Return the command that runs a part of a cluster in the foreground; its script executes Java."""
        return [str(self.root / "bin" / f"{part}.sh"), "start-foreground", *arguments]

    def flink(self, *arguments: str) -> list[str]:
        """Return a command of Flink's command line, for example ``flink("run", "-py", "job.py")``."""
        return [str(self.root / "bin" / "flink"), *arguments]

    @property
    def python_jar(self) -> Path:
        """PyFlink's jar, for a client that adds it to a job."""
        return python_jar(self.root)

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the commands: this Python and a Java, and nothing of another Flink.

        Args:
            environ: The environment to start from; ``os.environ`` by default. Its Python variables are
                dropped.

        Raises:
            JavaNotFoundError: There is no Java runtime that Flink can use.
        """
        variables = os.environ if environ is None else environ
        inherited = {name: value for name, value in variables.items() if not name.startswith("PY")}
        environment = inherited | {
            # The package that contains this module, wherever it is installed.
            "PYTHONPATH": str(Path(__file__).parents[4]),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)]),
            "JAVA_HOME": str(find_java_home().home),
            # PyFlink sets these variables in a process that uses it, and Flink's scripts obey them.
            "FLINK_HOME": str(self.root),
            "FLINK_LIB_DIR": str(self.root / "lib"),
            "FLINK_OPT_DIR": str(self.root / "opt"),
            "FLINK_PLUGINS_DIR": str(self.root / "plugins"),
            "FLINK_CONF_DIR": str(self.conf),
            "FLINK_LOG_DIR": str(self.log),
            "FLINK_PID_DIR": str(self.root / "tmp"),
        }
        prepare_workers(environment)
        return environment


def pyflink_directory() -> Path:
    """Return the directory of the installed package ``pyflink``.

    Raises:
        SetupError: It is not installed.
    """
    spec = find_spec("pyflink")
    if spec is None or spec.origin is None:
        raise _not_found("no package pyflink")
    return Path(spec.origin).parent


def python_jar(directory: Path) -> Path:
    """Return PyFlink's jar, which a distribution has in ``opt``.

    Raises:
        SetupError: There is none.
    """
    jars = sorted((directory / "opt").glob(f"{PYTHON_JAR}*.jar"))
    if len(jars) != 1:
        raise _not_found(f"{len(jars)} files opt/{PYTHON_JAR}*.jar in {directory}")
    return jars[0]


def _not_found(found: str) -> SetupError:
    return SetupError(
        "There is no Flink to make a cluster from.",
        expected="the package pyflink with its directories bin, conf, lib and opt",
        found=found,
        fix=install_command(options="--force-reinstall"),
    )


# -- files --------------------------------------------------------------------------------


def _link_all(source: Path, target: Path) -> None:
    """Link all files of ``source`` into ``target``; the user's own files stay."""
    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        if path.is_symlink() and not path.exists():
            path.unlink()  # Of a PyFlink that was replaced.
    if source.is_dir():
        for path in source.iterdir():
            _link_directory(path, target)
    if target.name == "lib" and not list(target.glob(_DISTRIBUTION_JAR)):
        raise _not_found(f"no lib/{_DISTRIBUTION_JAR} in {source.parent}")


def _link_directory(path: Path, directory: Path) -> None:
    link = directory / path.name
    target = path.resolve()
    if link.is_symlink() and link.resolve() != target:
        link.unlink()
    # A process of the cluster may be about to open an existing file.
    if not link.exists():
        link.symlink_to(target)


def _copy_new(source: Path, target: Path) -> None:
    """Copy the files that ``target`` does not have: you may have changed Flink's log configuration."""
    for path in source.iterdir():
        if path.is_file() and not (target / path.name).exists():
            shutil.copy(path, target)


# -- configuration ------------------------------------------------------------------------


def write_configuration(packaged: Path, path: Path, options: Mapping[str, Any]) -> None:
    """Write ``config.yaml``.

    Args:
        packaged: The packaged file.
        path: The new one.
        options: Options that override it, by full name; None removes an option.
    """
    packaged_options = dict(flatten_options(yaml.safe_load(packaged.read_text(encoding="utf-8")) or {}))
    merged = {
        name: value
        for name, value in {**packaged_options, **dict(flatten_options(options))}.items()
        if value is not None
    }
    path.write_text(yaml.safe_dump(with_shared_classes(merged)), encoding="utf-8")


def with_shared_classes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` with :data:`SHARED_CLASSES` added to their patterns."""
    patterns = [pattern for pattern in str(options.get(PARENT_FIRST) or "").split(";") if pattern]
    missing = [pattern for pattern in SHARED_CLASSES if pattern not in patterns]
    return {**options, PARENT_FIRST: ";".join([*patterns, *missing])}


def flatten_options(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options of a nested configuration by their full names."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flatten_options(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def main(arguments: list[str]) -> int:
    """Create a distribution for ``docker/flink-service``, and print its path."""
    (root,) = arguments
    properties = os.environ.get("FLINK_PROPERTIES", "").strip()
    options: dict[str, Any] | None = None
    if properties:
        # Valid for one machine only; a container has its own name.
        options = {"taskmanager.host": None, **dict(flatten_options(yaml.safe_load(properties)))}
    conf, log = (os.environ.get(name) for name in ("FLINK_CONF_DIR", "FLINK_LOG_DIR"))
    home = FlinkHome.create(
        Path(root), options, conf=Path(conf) if conf else None, log=Path(log) if log else None
    )
    print(home.root)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
