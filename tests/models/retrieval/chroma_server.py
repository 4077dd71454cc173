"""A real Chroma server for tests: ``chroma run`` as a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import httpx

START_SECONDS = 60.0


class ChromaServer:
    """See the module.

    Args:
        directory: Where it keeps its database and its log.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(Path(sys.executable).with_name("chroma")), "run", "--path", str(self.directory / "db")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "localhost", "--port", str(self.port)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "ANONYMIZED_TELEMETRY": "FALSE"},
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.directory / "log").read_text())
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://localhost:{self.port}/api/v2/heartbeat", timeout=1.0).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def new_database(self) -> str:
        """A database that nobody else has."""
        name = f"d{uuid.uuid4().hex}"
        databases = f"http://localhost:{self.port}/api/v2/tenants/default_tenant/databases"
        httpx.post(databases, json={"name": name}).raise_for_status()
        return name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
