"""Builds the two distributions, from the files in git and with the build tools of the lock."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Built:
    """The files of a release.

    Attributes:
        sdist: The source distribution.
        wheel: The wheel, which was built from the source distribution.
    """

    sdist: Path
    wheel: Path


def known_files() -> list[str]:
    """The files of the checkout that git knows, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [name for name in listed if name and (ROOT / name).is_file()]


def build(directory: Path) -> Built:
    """Build both distributions.

    Args:
        directory: An empty directory. The source goes to ``source`` in it, the results to ``dist``.
    """
    source = directory / "source"
    dist = directory / "dist"
    for name in known_files():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    # Without isolation, so that the build tools are those of the lock.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The build failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    [sdist], [wheel] = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return Built(sdist, wheel)
