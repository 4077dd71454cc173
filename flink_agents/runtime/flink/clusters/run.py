"""Runs the script of a job on a cluster and reports what happens to the job until it ends.

``flink run`` passes on the output of the script, and adds its own lines: the ids of jobs, and around a Python
traceback two hundred lines of Java. You see the script's lines; all lines go to a file.
"""

from __future__ import annotations

import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from flink_agents.api.errors import (
    ClusterError,
    ClusterUnavailableError,
    JobFailedError,
    ModuleNotOnWorkersError,
    SubmissionError,
    UnknownJobError,
)
from flink_agents.api.errors.base import suggest
from flink_agents.runtime.flink.clusters.jobs import dead_letters, last_checkpoint, letter_lines
from flink_agents.runtime.flink.following.console import new_log, shown_path
from flink_agents.runtime.flink.following.rest import (
    ClusterRest,
    JobFollower,
    JobUpdate,
    sleep_until_next_poll,
)
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


OUTPUT_SECONDS = 2.0
"""The interval at which new output of TaskManagers is shown."""

LETTERS_SECONDS = 5.0
"""Interval in which dead letters are counted: Flink asks the TaskManagers for the number."""

REFRESH_SECONDS = 3.2
"""Maximum age of answers if Flink does not report it: its default, and a little more."""

MARGIN_SECONDS = 0.2
"""Added to the age of answers that Flink reports."""

UNREACHABLE_SECONDS = 60.0
"""Time that a followed job's cluster may be unreachable: replacing a JobManager takes some time."""

WAITING_SECONDS = 10.0
"""After this time, a job without slots is reported as waiting for them."""

MAX_OUTPUT_BYTES = 1 << 24
"""Longer output files are not followed."""

Say = Callable[[str], None]
"""Shows a line to the user."""


def run_on_cluster(
    rest_client: ClusterRest, request: JobRequest, say: Say, show: Say, outputs: bool = True
) -> str | None:
    """Submit a job, and report its progress until it has ended.

    Args:
        rest_client: The cluster.
        request: The job to submit.
        say: Gets the reports.
        show: Gets the output of the script and, with ``outputs``, of the TaskManagers.
        outputs: True to show what TaskManagers print meanwhile.

    Returns:
        The last state of the last job, in Flink's words; None if the job is not followed, since it was
        submitted detached.

    Raises:
        ClusterUnavailableError: The cluster does not answer.
        SubmissionError: The script ended before it submitted a job, or failed after its last one.
        JobFailedError: The job failed.
    """
    rest_client.get("/overview")
    log = new_log(f"run {request.script.stem}")
    printed = _TaskOutput(rest_client, show) if outputs and not request.detached else None
    submission = Submission(request, rest_client.host_and_port, log, show)
    state: str | None = None
    try:
        while (job_id := submission.jobs.get()) is not None:
            say(f"job {job_id}: submitted to {rest_client.address}")
            if not request.detached:
                state = _Following(rest_client, job_id, say, printed).to_the_end()
    except BaseException:
        submission.end_client()
        raise
    status = submission.wait_for_end()
    if status != 0 and state not in ("CANCELED", "SUSPENDED"):
        raise _failed_script_error(request.script, submission, status, log)
    return state


def _failed_script_error(
    script: Path, submission: Submission, status: int, log: Path | None
) -> SubmissionError:
    where = "" if log is None else f"; its whole output is in {shown_path(log)}"
    return SubmissionError(
        f"{script.name} ended with {status}",
        found="\n".join(submission.traceback) or submission.cause,
        fix=f"correct the script{where}",
    )


@dataclass
class _Following:
    """Follows a job from its submission to its end, and tells the user what happens to it."""

    rest_client: ClusterRest
    job_id: str
    say: Say
    printed: _TaskOutput | None
    following_since: float = field(default_factory=time.monotonic)
    warned_of_slots: bool = False
    logged_letters: list[str] = field(default_factory=list[str])
    letters_due: float = 0.0
    checkpoint: str | None = None

    def to_the_end(self) -> str:
        """Wait for the end of the job, and return its last state, in Flink's words.

        Raises:
            JobFailedError: The job failed.
            ClusterUnavailableError: The cluster has not answered for a minute.
            UnknownJobError: The cluster no longer knows the job.
        """
        name = self._job_name()
        follower = JobFollower(self.rest_client, self.job_id, name, answers_age=self._answers_age())
        answered = time.monotonic()
        while True:
            try:
                news = follower.poll_job()
                answered = time.monotonic()
                self._report_news(name, news)
                self._report_slots(news)
                self._report_letters(name, news)
            except ClusterUnavailableError:
                if time.monotonic() - answered > UNREACHABLE_SECONDS:
                    raise
            except ClusterError as error:
                raise self._lost_job_error(name, error) from None
            else:
                if self.printed is not None:
                    self.printed.show_new(at_once=news.ended)
                if news.ended:
                    return self._report_end(name, news)
            sleep_until_next_poll(self.following_since)

    def _report_news(self, name: str, news: JobUpdate) -> None:
        for restart in news.restarts:
            if isinstance(restart.failure, ModuleNotOnWorkersError) and restart.number == 1:
                # No restart brings the module, and a cluster may restart forever.
                with suppress(ClusterError):  # It may have ended meanwhile.
                    self.rest_client.patch(f"/jobs/{self.job_id}?mode=cancel")
                raise restart.failure
            self.say(str(restart))
        if news.changed:
            self.say(f"job {name!r}: {news.state}")

    def _report_end(self, name: str, news: JobUpdate) -> str:
        if news.state == "FAILED":
            raise news.failure or JobFailedError(f"job {name!r} failed, and Flink reports no reason")
        return news.state

    def _lost_job_error(self, name: str, error: ClusterError) -> ClusterError:
        """Return the error about a job that the cluster no longer knows; return any other error unchanged."""
        if not (error.found or "").startswith("404"):
            return error
        again = "run it again"
        if self.checkpoint is not None:
            again = f"run it again from its last checkpoint: --savepoint {self.checkpoint}"
        return UnknownJobError(
            f"the cluster at {self.rest_client.address} no longer knows job {name!r}",
            expected=f"job {self.job_id}, which ran there",
            found="a JobManager that was started again, and knows no earlier jobs",
            fix=again,
        )

    def _answers_age(self) -> float:
        with suppress(ClusterError, KeyError, TypeError):
            return self.rest_client.get("/config")["refresh-interval"] / 1000 + MARGIN_SECONDS
        return REFRESH_SECONDS

    def _job_name(self) -> str:
        with suppress(ClusterError, KeyError, TypeError):
            return str(self.rest_client.get(f"/jobs/{self.job_id}/config")["name"])
        return self.job_id

    def _report_slots(self, news: JobUpdate) -> None:
        """Report once that the job waits for slots, if there are none for it."""
        if self.warned_of_slots or news.ended or time.monotonic() - self.following_since < WAITING_SECONDS:
            return
        self.warned_of_slots = True
        with suppress(KeyError, TypeError):
            jobs = {job["jid"]: job for job in self.rest_client.get("/jobs/overview")["jobs"]}
            tasks: dict[str, Any] = jobs[self.job_id]["tasks"]
            free = self.rest_client.get("/overview")["slots-available"]
            if tasks["scheduled"] and not tasks["running"] and not tasks["initializing"] and not free:
                self.say("the job waits for slots, and none is free: start a TaskManager, or stop a job")

    def _report_letters(self, name: str, news: JobUpdate) -> None:
        """Report the number of dead letters if it is new, some seconds after the last time."""
        if news.ended or time.monotonic() < self.letters_due:
            return
        self.letters_due = time.monotonic() + LETTERS_SECONDS
        with suppress(ClusterError, KeyError, TypeError, AttributeError):
            self.checkpoint = last_checkpoint(self.rest_client, self.job_id) or self.checkpoint
        lines = letter_lines(dead_letters(self.rest_client, self.job_id))
        for line in lines:
            if line not in self.logged_letters:
                self.say(f"job {name!r}: {line}")
        self.logged_letters = lines


class _TaskOutput:
    """Shows what TaskManagers write to their standard output after this object was created.

    Args:
        rest_client: The cluster.
        show: Gets the lines.
    """

    def __init__(self, rest_client: ClusterRest, show: Say) -> None:
        self._rest_client = rest_client
        self._show = show
        self._shown: dict[str, int] = {}
        self._due = 0.0
        self._show_output(show=False)

    def show_new(self, at_once: bool) -> None:
        """Show new lines, if the last time was some seconds ago, or ``at_once``."""
        if at_once or time.monotonic() >= self._due:
            self._due = time.monotonic() + OUTPUT_SECONDS
            self._show_output(show=True)

    def _show_output(self, show: bool) -> None:
        with suppress(ClusterError, KeyError, TypeError):
            for manager in [
                taskmanager["id"] for taskmanager in self._rest_client.get("/taskmanagers")["taskmanagers"]
            ]:
                with suppress(ClusterError):
                    text = self._rest_client.text(f"/taskmanagers/{manager}/stdout")
                    if len(text) <= MAX_OUTPUT_BYTES:
                        self._show_after(manager, text, show)

    def _show_after(self, manager: str, text: bytes, show: bool) -> None:
        whole = text.rfind(b"\n") + 1
        if show:
            for line in text[self._shown.get(manager, 0) : whole].splitlines():
                self._show(line.decode("utf-8", "replace"))
        self._shown[manager] = whole
