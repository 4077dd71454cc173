"""``scripts/release``: builds and checks a release, and lists the files to upload."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.release.build import ROOT, Built, build
from tests.release.checks import notes, problems, unready
from tests.release.environment import InstalledWheel
from tests.release.first_minutes import first_minutes

EXTRAS = ("jvm", "examples", "test")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, check, install; print what was found. The exit code is 1 where something forbids the upload."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="directory for the files; default: dist"
    )
    parser.add_argument(
        "--offline", action="store_true", help="install the requirements from .venv instead of the index"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="flink-agents-release-") as temporary:
        directory = Path(temporary)
        built = build(directory)
        findings = [*problems(built), *unready(built, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))]
        try:
            print("installing the wheel in an environment of its own", flush=True)
            environment = InstalledWheel(
                directory / "env", built.wheel, EXTRAS, downloads=not options.offline
            )
            for line in first_minutes(environment, directory):
                print(f"  {line}", flush=True)
        except RuntimeError as error:
            findings.append(f"The installed wheel does not serve: {error}")
        output_files = _keep_files(built, options.output)
    _report(output_files, findings)
    return 1 if findings else 0


def _keep_files(built: Built, output: Path) -> Built:
    output.mkdir(parents=True, exist_ok=True)
    return Built(
        sdist=Path(shutil.copy(built.sdist, output)),
        wheel=Path(shutil.copy(built.wheel, output)),
    )


def _report(built: Built, found: list[str]) -> None:
    for sentence in found:
        print(f"problem: {sentence}")
    for sentence in notes(built):
        print(f"note: {sentence}")
    for file in (built.sdist, built.wheel):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}")
    if found:
        print("Nothing is to be uploaded: see the problems above.")
    else:
        print(f"Ready. To upload: twine upload {built.sdist} {built.wheel}")
