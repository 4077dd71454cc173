"""Environments of peers below ``build/peers``: virtual environments from locks, and binaries that npm has."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.peer import Peer

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "peers"
NPM = json.loads((HERE / "locks" / "npm.json").read_text())


@dataclass(frozen=True)
class Environment:
    """Where a peer runs.

    Attributes:
        python: Its Python.
        npm: The directory of its npm package, or None.
        seconds: How long it took to make; 0 if it was there.
    """

    python: Path
    npm: Path | None
    seconds: float


def environment_of(peer: Peer) -> Environment:
    """Return the environment of a peer, which is made if it is missing or its lock has changed."""
    begun = time.monotonic()
    python = Path(sys.executable) if peer.lock is None else _python(peer.lock)
    npm = None if peer.npm is None else _npm(peer.npm)
    return Environment(python, npm, time.monotonic() - begun)


def _python(lock: str) -> Path:
    requirements = HERE / "locks" / f"{lock}.txt"
    directory = BUILD / lock
    stamp, digest = directory / "stamp", hashlib.sha256(requirements.read_bytes()).hexdigest()
    python = directory / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != digest:
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        install = ["-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
        subprocess.run([python, *install, "--require-hashes", "-r", requirements], check=True)
        stamp.write_text(digest)
    return python


def _npm(name: str) -> Path:
    package = NPM[name][f"{sys.platform}-{os.uname().machine}"]
    directory = BUILD / f"{name}-{package['version']}"
    if not directory.exists():
        part = directory.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        spec = f"{package['name']}@{package['version']}"
        packed = subprocess.run(["npm", "pack", "--silent", spec], cwd=part, check=True, capture_output=True)
        archive = part / packed.stdout.decode().strip().splitlines()[-1]
        algorithm, _, expected = package["integrity"].partition("-")
        found = base64.b64encode(hashlib.new(algorithm, archive.read_bytes()).digest()).decode()
        if found != expected:
            raise SystemExit(f"{spec} is not what {HERE.name}/locks/npm.json names: {algorithm}-{found}")
        with tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
        archive.unlink()
        part.rename(directory)
    return directory / "package"
