"""A new environment with the wheel, like that of a new user.

``pip`` installs the wheel and writes its commands. Of the third parties' packages, the files are those of the
environment that the tests run in: the declared requirements and what they require in turn, and no others. So
a requirement that is not declared is missing here, one that cannot be met ends the installation, and nothing
is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SECONDS = 900
"""How long one command may take; a download of all requirements takes minutes on a loaded machine."""


class InstalledWheel:
    """An environment in which the wheel is installed.

    Args:
        directory: Where the environment is made.
        wheel: The wheel.
        extras: Its extras that are installed.
        downloads: Whether ``pip`` gets the requirements from the package index, as for a user, instead of
            from the environment that this process runs in.
        constraints: A file with versions of downloaded packages.
    """

    def __init__(
        self,
        directory: Path,
        wheel: Path,
        extras: Iterable[str] = (),
        *,
        downloads: bool = False,
        constraints: Path | None = None,
    ) -> None:
        self.directory = directory
        venv.create(directory, with_pip=False, symlinks=True)
        wanted = f"{wheel}[{','.join(extras)}]"
        if not downloads:
            self._link_requirements(wheel, tuple(extras))
        # The installing pip is that of this process; it works on the other environment.
        offline = [] if downloads else ["--no-index", "--no-cache-dir"]
        pip = [sys.executable, "-m", "pip", "--python", str(self.program("python")), "install", "-q"]
        versions = [] if constraints is None else ["--constraint", str(constraints)]
        run([*pip, "--disable-pip-version-check", *offline, *versions, wanted], directory)

    @property
    def site_packages(self) -> Path:
        """Where the packages are."""
        [path] = self.directory.glob("lib/python*/site-packages")
        return path

    def program(self, name: str) -> Path:
        """The path of a command of the environment."""
        return self.directory / "bin" / name

    def run(self, program: str, *arguments: str, cwd: Path) -> str:
        """Run a command of the environment and return what it printed; an error has its last lines."""
        return run([str(self.program(program)), *arguments], cwd)

    def _link_requirements(self, wheel: Path, extras: tuple[str, ...]) -> None:
        [info] = metadata.distributions(path=[str(wheel)])
        for distribution in closure(info.requires or [], extras):
            for file in distribution.files or []:
                source = Path(str(distribution.locate_file(file)))
                target = self.site_packages / str(file)
                # Commands lie outside of site-packages; nothing here calls those of others.
                if ".." not in file.parts and source.is_file():
                    _link(source, target)


def closure(requirements: Iterable[str], extras: Iterable[str]) -> Iterator[metadata.Distribution]:
    """The installed distributions that requirements ask for, and what those ask for in turn."""
    seen: set[tuple[str, str]] = set()
    yielded_names: set[str] = set()
    waiting = [(requirement, extra) for requirement in requirements for extra in ("", *extras)]
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        wanted = {(name, wanted_extra) for wanted_extra in ("", *requirement.extras)} - seen
        seen |= wanted
        distribution = metadata.distribution(name)
        waiting += [
            (inner, wanted_extra) for _, wanted_extra in wanted for inner in distribution.requires or []
        ]
        if name not in yielded_names:
            yielded_names.add(name)
            yield distribution


def run(command: list[str], cwd: Path) -> str:
    """Run a command as from a fresh shell, without a variable that says something about Python."""
    inherited_names = {"HOME", "JAVA_HOME", "LANG", "TMPDIR"}
    environment = {name: value for name, value in os.environ.items() if name in inherited_names}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment | {"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def _link(source: Path, target: Path) -> None:
    # Some files belong to two distributions.
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # Another file system.
        shutil.copy2(source, target)
