"""Runs the script of a job with ``flink run``, as a client of a cluster, and filters its output.

Flink passes on the output of the script, and adds its own lines: the ids of jobs, and around a Python
traceback two hundred lines of Java. You see the script's lines; all lines go to a file.

Before that, it is checked that the savepoint exists: a job would wait for one that does not.
"""

from __future__ import annotations

import os
import queue
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flink_agents.api.errors import SubmissionError
from flink_agents.api.errors.base import suggest
from flink_agents.runtime.flink.launch.flink_home import FlinkHome

CLIENT_DIRECTORY = Path(".flink-agents") / "client"

_SUBMITTED = re.compile(r"Job has been submitted with JobID ([0-9a-f]{32})")
_FLINKS_OWN = re.compile(
    r"Program execution finished|Job with JobID [0-9a-f]{32} has finished|Job Runtime: \d+"
    r"|Accumulator Results|WARNING: |SLF4J: |Picked up |Failed to import GCSFileSystem"
)
_CAUSED_BY = re.compile(r"\s*Caused by: (?:[\w$]+\.)*([\w$]+(?:: .*)?)$")
_TRACEBACK = "Traceback (most recent call last):"
_JAVA = re.compile(
    r"\s+at [\w.$/<>]+\(|\s+\.\.\. \d+ more|Caused by: |Suppressed: |org\.apache\.flink\.|java\.|-{20,}"
    r"| The program finished with the following exception"
)


@dataclass(frozen=True)
class JobRequest:
    """A job to submit.

    Attributes:
        script: The script of the job.
        arguments: Its arguments.
        savepoint: The savepoint or checkpoint to start from.
        py_files: Files and directories of modules for the workers.
        parallelism: Default parallelism of its operators.
        detached: True if the script's ``execute()`` does not wait for the end of the job.
        options: Options of Flink for the job.
        skip_state: True to ignore state of the savepoint for which the job has no operator.
    """

    script: Path
    arguments: Sequence[str] = ()
    savepoint: str | None = None
    py_files: Sequence[Path] = ()
    parallelism: int | None = None
    detached: bool = False
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    skip_state: bool = False

    def command(self, home: FlinkHome, address: str) -> list[str]:
        """Return the command line for the submission.

        Args:
            home: The Flink to submit with.
            address: ``host:port`` of the cluster.
        """
        words = ["run", "-m", address]
        words += ["-d"] if self.detached else []
        words += ["-p", str(self.parallelism)] if self.parallelism is not None else []
        words += ["-s", self.savepoint] if self.savepoint is not None else []
        words += ["-n"] if self.skip_state else []
        words += [f"-D{key}={value}" for key, value in self.options.items()]
        words += ["-pyclientexec", sys.executable]
        if self.py_files:
            words += ["-pyfs", ",".join(str(path.absolute()) for path in self.py_files)]
        return [*home.flink(*words), "-py", str(self.script.absolute()), *self.arguments]


class Submission:
    """A script that runs as a client of a cluster.

    Args:
        request: The job to submit.
        address: ``host:port`` of the cluster.
        log: The file for all lines; None for none.
        say: Gets the lines of the script, without line ends.
        directory: Where the client's Flink distribution is created.

    Attributes:
        jobs: The ids of the jobs that it has submitted, and None once it has ended.
        traceback: The lines of the script from its last traceback on, without Java's.
        cause: The innermost cause that Java names; None if there is none.
    """

    def __init__(
        self,
        request: JobRequest,
        address: str,
        log: Path | None,
        say: Callable[[str], None],
        directory: Path = CLIENT_DIRECTORY,
    ) -> None:
        self.jobs: queue.Queue[str | None] = queue.Queue()
        self.traceback: list[str] = []
        self.cause: str | None = None
        self._say = say
        self._log = log
        home = FlinkHome.create(directory)
        # As with `python job.py`: the job may import modules next to it. Workers do not have them.
        beside = [str(request.script.absolute().parent)]
        environment = home.environment()
        environment["PYTHONPATH"] = os.pathsep.join([*beside, environment["PYTHONPATH"]])
        self._process = subprocess.Popen(
            request.command(home, address),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment | {"PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read_lines, name="client-output", daemon=True)
        self._reader.start()

    def wait_for_end(self) -> int:
        """Wait for the end of the script, and return its exit code."""
        self._reader.join()
        return self._process.wait()

    def end_client(self) -> None:
        """End the client; the jobs that it has submitted keep running."""
        self._process.kill()
        self.wait_for_end()

    def _read_lines(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        try:
            with stream, open(self._log or os.devnull, "ab") as log:
                for line in stream:
                    log.write(line)
                    log.flush()
                    self._read_line(line.decode("utf-8", "replace").rstrip("\r\n"))
        finally:
            self.jobs.put(None)

    def _read_line(self, line: str) -> None:
        if (caused := _CAUSED_BY.match(line)) is not None:
            self.cause = caused[1]
        match = _SUBMITTED.search(line)
        if match is not None:
            self.jobs.put(match[1])
        elif line.startswith(_TRACEBACK):
            self.traceback = [line]
        elif self.traceback:
            if not _JAVA.match(line):
                self.traceback.append(line)
        elif not _FLINKS_OWN.match(line) and not _JAVA.match(line):
            self._say(line)


METADATA = "_metadata"
_MOST_SHOWN = 5


def check_savepoint(place: str, cluster: str) -> None:
    """Check that a path has a savepoint or a checkpoint, if this machine can see it.

    Args:
        place: A path or URL.
        cluster: Address of the cluster. Paths on other machines are not checked.

    Raises:
        SubmissionError: The path has neither.
    """
    url = urlsplit(place)
    if url.scheme not in ("", "file") or not _is_here(cluster):
        return
    path = Path(unquote(url.path))
    if path.is_file() or (path / METADATA).is_file():
        return
    parent = next((candidate for candidate in (path, *path.parents) if candidate.is_dir()), path)
    names = sorted(child.name for child in parent.iterdir()) if parent.is_dir() else []
    savepoints = [name for name in names if (parent / name / METADATA).is_file()]
    shown = ", ".join((savepoints or names)[:_MOST_SHOWN]) or "nothing"
    missing = path.relative_to(parent).parts
    hint = _deeper_fix(savepoints)
    raise SubmissionError(
        f"no savepoint was found at {path}",
        expected=f"a directory with a file {METADATA}, as flink-agents stop prints it",
        found=f"{parent} has {shown}",
        fix=suggest(missing[0], savepoints, hint) if missing else hint,
    )


def _deeper_fix(savepoints: list[str]) -> str:
    if savepoints:
        return f"name one of the savepoints in it, such as {savepoints[-1]}"
    return "correct --savepoint; flink-agents stop prints the path of a new one"


def _is_here(cluster: str) -> bool:
    host = urlsplit(cluster if "://" in cluster else f"http://{cluster}").hostname or ""
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname())
