"""Environments of peers below ``build/peers``: virtual environments from locks, and binaries from npm."""

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

from benchmarks.peers.peer import OUR_LOCK, Peer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "peers"
INSTALL_SECONDS = 900
NPM = json.loads((HERE / "locks" / "npm.json").read_text())


@dataclass(frozen=True)
class Environment:
    """Where a peer runs.

    Attributes:
        python: Its Python.
        npm: The directory of its npm package, or None.
        seconds: How long it took to make, now or when it was made; None if there is nothing to install.
    """

    python: Path
    npm: Path | None
    seconds: float | None


def environment_of(peer: Peer) -> Environment:
    """Return the environment of a peer, which is made if it is missing or its lock has changed."""
    if peer.lock is None:
        return Environment(Path(sys.executable), None, None)
    python, seconds = _python(peer.lock)
    if peer.npm is None:
        return Environment(python, None, seconds)
    npm, more = _npm(peer.npm)
    return Environment(python, npm, seconds + more)


def _python(lock: str) -> tuple[Path, float]:
    requirements = HERE / "locks" / f"{lock}.txt"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    directory = BUILD / lock
    stamp = directory / "stamp"
    python = directory / "bin" / "python"
    stamp_data = json.loads(stamp.read_text()) if stamp.exists() else {}
    if stamp_data.get("lock") != wanted:
        start_seconds = time.monotonic()
        _run(sys.executable, "-m", "venv", "--clear", str(directory))
        install = (str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps")
        _run(*install, "--require-hashes", "-r", str(requirements))
        if lock == OUR_LOCK:
            _run(*install, "--no-build-isolation", "--editable", str(ROOT))
        stamp_data = {"lock": wanted, "seconds": time.monotonic() - start_seconds}
        stamp.write_text(json.dumps(stamp_data))
    return python, stamp_data["seconds"]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_SECONDS)


def _npm(name: str) -> tuple[Path, float]:
    package = NPM[name][f"{sys.platform}-{os.uname().machine}"]
    directory = BUILD / f"{name}-{package['version']}"
    if not directory.exists():
        start_seconds = time.monotonic()
        part = directory.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        spec = f"{package['name']}@{package['version']}"
        pack = ["npm", "pack", "--silent", spec]
        packed = subprocess.run(pack, cwd=part, check=True, capture_output=True, timeout=INSTALL_SECONDS)
        archive = part / packed.stdout.decode().strip().splitlines()[-1]
        algorithm, _, expected = package["integrity"].partition("-")
        digest = base64.b64encode(hashlib.new(algorithm, archive.read_bytes()).digest()).decode()
        if digest != expected:
            raise SystemExit(f"{spec} is not what {HERE.name}/locks/npm.json names: {algorithm}-{digest}")
        with tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
        archive.unlink()
        (part / "seconds").write_text(str(time.monotonic() - start_seconds))
        part.rename(directory)
    return directory / "package", float((directory / "seconds").read_text())
