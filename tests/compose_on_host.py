"""Each command of ``docker-compose.yml`` on this machine, without Docker.

    python -m tests.compose_on_host

The broker is that of ``flink-agents kafka``; ``docker/flink-service`` runs the services of Flink as in the
image, with the environment and the commands of the file. Only names of hosts, ports and directories are
replaced. Fails unless the job has its result, and its calls are in the store.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from flink_agents.runtime.flink.launch.jvm import find_java_home
from tests.cluster.flink_cluster import free_ports
from tests.cluster.waiting import tail, wait_until

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker-compose.yml"
START_SECONDS = 180
COMMAND_SECONDS = 300


def read_compose() -> dict[str, Any]:
    """The file."""
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))


class Host:
    """This machine in place of the containers.

    Args:
        compose: The file.
        directory: Instead of volumes.
        bootstrap_servers: Instead of the service ``kafka``.
    """

    def __init__(self, compose: dict[str, Any], directory: Path, bootstrap_servers: str) -> None:
        self._services = compose["services"]
        self._directory = directory
        self.rpc_port, self.rest_port = free_ports(2)
        self._replaced = {
            "kafka:9092": bootstrap_servers,
            "/data": str(directory / "data"),
            "jobmanager.rpc.port: 6123": f"jobmanager.rpc.port: {self.rpc_port}",
            "rest.port: 8081": f"rest.port: {self.rest_port}",
            "io.tmp.dirs: /tmp": f"io.tmp.dirs: {directory / 'tmp'}",
            "0.0.0.0": "localhost",
            "address: jobmanager": "address: localhost",
        }

    def local(self, text: str) -> str:
        """A text of the file as it stands for this machine."""
        for there, here in self._replaced.items():
            text = text.replace(there, here)
        return text

    def environment(self, service: str, number: int = 0) -> dict[str, str]:
        """What a service of Flink finds in its environment."""
        service_variables = {
            name: self.local(value) for name, value in self._services[service]["environment"].items()
        }
        base = self._directory / f"{service}-{number}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
        return {
            **inherited,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")]),
            "JAVA_HOME": str(find_java_home().home),
            "FLINK_CONF_DIR": str(base / "conf"),
            "FLINK_LOG_DIR": str(base / "log"),
            **service_variables,
        }

    def command(self, service: str) -> list[str]:
        """What a service executes."""
        return [str(ROOT / "docker" / "flink-service"), *map(self.local, self._services[service]["command"])]

    def replicas(self, service: str) -> int:
        """How many containers a service has."""
        return self._services[service].get("deploy", {}).get("replicas", 1)

    @contextmanager
    def running(self, service: str) -> Iterator[list[Path]]:
        """All containers of a service as processes; gives their logs."""
        processes: list[subprocess.Popen[bytes]] = []
        logs: list[Path] = []
        try:
            for number in range(self.replicas(service)):
                logs.append(self._directory / f"{service}-{number}.out")
                with logs[-1].open("wb") as stream:
                    processes.append(
                        subprocess.Popen(
                            self.command(service),
                            env=self.environment(service, number),
                            cwd=ROOT,
                            stdin=subprocess.DEVNULL,
                            stdout=stream,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )
            yield logs
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def execute(self, service: str) -> str:
        """What the command of a service prints; it must end well."""
        done = subprocess.run(
            self.command(service),
            env=self.environment(service),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        print(done.stdout, flush=True)
        if done.returncode != 0:
            raise AssertionError(f"the command of {service} ended with {done.returncode}")
        return done.stdout

    def slots(self) -> int:
        """How many slots Flink has."""
        try:
            with urllib.request.urlopen(f"http://localhost:{self.rest_port}/overview", timeout=10) as answer:
                return json.loads(answer.read())["slots-total"]
        except (OSError, ValueError):
            return 0


def broker(*arguments: str) -> str:
    """What ``flink-agents kafka`` prints."""
    command = [str(Path(sys.executable).parent / "flink-agents"), "kafka", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def run(directory: Path) -> None:
    """Do all that the head of the file tells."""
    compose = read_compose()
    for name in ("data", "tmp"):
        (directory / name).mkdir()
    kafka = ["--data", str(directory / "kafka")]
    started = json.loads(broker("start", *kafka, "--json"))
    try:
        host = Host(compose, directory, started["bootstrap_servers"])
        with host.running("jobmanager") as first, host.running("taskmanager") as taskmanager_logs:
            wanted = 2 * host.replicas("taskmanager")
            logs = [*first, *taskmanager_logs]
            wait_until(
                f"{wanted} slots",
                lambda: host.slots() >= wanted,
                START_SECONDS,
                lambda: "\n".join(map(tail, logs)),
            )
            check(host.execute("submit"), host.execute("journal"))
    finally:
        broker("stop", *kafka)


def check(result: str, stats: str) -> None:
    """See that the job came to its result, and that its calls were recorded."""
    if "comes to the same result" not in result:
        raise AssertionError("the job did not come to its result")
    figures = json.loads(stats)
    records = int(figures["records"])
    print(f"{records} records in {figures['journals']} journals")
    if not re.fullmatch(r"[0-9a-f-]{36}", figures["store"]) or figures["journals"] < 1:
        raise AssertionError(f"there is nothing in the store: {figures}")


def main() -> int:
    directory = Path(tempfile.mkdtemp(prefix="compose-"))
    try:
        run(directory)
    except BaseException:
        print(f"what is left is in {directory}", file=sys.stderr)
        raise
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
