"""One start of a local job that resumes: its work before, during and after Flink's execution of the job.

Ctrl-C and SIGTERM stop it with a savepoint.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pyflink.datastream import DataStream, StreamExecutionEnvironment

from flink_agents import redaction
from flink_agents.api.errors import AgentsError, JobFailedError, JobFolderError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.following import console
from flink_agents.runtime.flink.following.outputs import LINK, ListFile, link_to, new_link, remove_link
from flink_agents.runtime.flink.job_errors import in_one_line
from flink_agents.runtime.flink.launch import gateway
from flink_agents.runtime.flink.resume import java
from flink_agents.runtime.flink.resume.checkpoints import (
    Candidate,
    Chosen,
    Watcher,
    directory_of,
    find_candidates,
    read_progress,
    remove_paths,
)
from flink_agents.runtime.flink.resume.job_run import RunRecord, Start, iso_now
from flink_agents.runtime.flink.resume.local_jobs import MOST_ERROR, point_to
from flink_agents.runtime.flink.resume.policy import RECOVERY_PATH
from flink_agents.runtime.flink.resume.start_decision import StartDecision
from flink_agents.runtime.flink.resume.transactions import TOLERABLE, guarded_sinks, is_set
from flink_agents.runtime.flink.stores import ANNOUNCEMENT_KEY, AnnouncedRun
from flink_agents.trace.recording.assembly import writes_files

INTERRUPTED = 130
TERMINATED = 143
"""Exit codes of a script whose job was stopped: those of shells for the two signals."""

_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class StopSignals:
    """Handles the two signals while a job runs, in the main thread only.

    Args:
        stop: Stops the job; called in a new thread, at the first signal.
        kill: Ends the job at once; called at the second one, before the process exits.
    """

    def __init__(self, stop: Callable[[], None], kill: Callable[[], None]) -> None:
        self._stop = stop
        self._kill = kill
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self.code: int | None = None

    def install_handlers(self) -> None:
        """Start to handle the signals, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for stop_signal in _CODES:
                # A signal that the parent process ignores stays ignored.
                if signal.getsignal(stop_signal) is not signal.SIG_IGN:
                    self._previous_handlers[stop_signal] = signal.signal(stop_signal, self._handle_signal)

    def restore_handlers(self) -> None:
        """Restore the previous handlers."""
        previous_handlers = self._previous_handlers
        self._previous_handlers = {}
        for stop_signal, handler in previous_handlers.items():
            signal.signal(stop_signal, handler)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        stop_signal = signal.Signals(number)
        if self.code is not None:
            console.print_line("ended at once; the next start resumes from the last checkpoint")
            self._kill()
            os._exit(_CODES[stop_signal])
        self.code = _CODES[stop_signal]
        again = " (Ctrl-C again: end at once)" if stop_signal is signal.SIGINT else ""
        console.print_line(f"stopping with a savepoint{again} ...")
        threading.Thread(target=self._stop, name="local-job-stop", daemon=True).start()


CHECKPOINT_DIR = "execution.checkpointing.dir"
_INTERVAL = "execution.checkpointing.interval"
_CLAIM_MODE = "execution.state-recovery.claim-mode"
RETAINED = 3
STOP_AGAIN_SECONDS = 0.5
"""Pause before a failed savepoint is retried."""

DEFAULTS = {
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": str(RETAINED),
    # Shared files of incremental checkpoints have absolute paths: the folder could not be moved.
    "execution.checkpointing.incremental": "false",
    # A checkpoint that fails, for example on a full disk, must not end the job.
    TOLERABLE: "1000000",
}
"""Default Flink options of a resuming job; the user's settings override them."""


@dataclass
class LocalStart:
    """One start of a local job that resumes.

    Attributes:
        beginning: The decision about the start.
        config: Options of the job.
        journal: The file of the journal; None for another store.
    """

    beginning: StartDecision
    config: Configuration
    journal: Path | None
    _client: Any = None
    _stopped: str | None = None
    _ended: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _set: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self._record = RunRecord(self.beginning.folder)
        self._signals = StopSignals(self._stop_job, gateway.kill_jvm)
        self._watcher: Watcher | None = None
        self._start: Start | None = None
        self._enabled = False

    @property
    def skips(self) -> bool:
        """True if the job is skipped: it has finished in a start of the script that ended in the middle."""
        return self.beginning.skipped

    # -- before the job runs ----------------------------------------------------------

    def configure_job(self, env: StreamExecutionEnvironment) -> None:
        """Record the start, and set the options of Flink that it needs."""
        folder = self.beginning.folder
        run = self.beginning.run
        flink = flink_compat.configuration_of(env)
        settings = {key: value for key, value in DEFAULTS.items() if not is_set(flink, key)}
        if guarded_sinks(env):
            # Outputs get lost if checkpoints fail for too long: `bound_transactions` decides.
            settings.pop(TOLERABLE, None)
        self._enabled = env.get_checkpoint_config().is_checkpointing_enabled()
        if not self._enabled:
            interval = self.config.get(AgentOptions.CHECKPOINT_INTERVAL)
            settings[_INTERVAL] = f"{int(interval.total_seconds() * 1000)} ms"
        checkpoint_directory = flink.get(CHECKPOINT_DIR)
        if checkpoint_directory is None:
            settings[CHECKPOINT_DIR] = java.flink_url(folder.checkpoints)
        place = None if checkpoint_directory is None else checkpoint_directory.removeprefix("file://")
        number = run.starts[-1].number + 1 if run.starts else 1
        chosen = self.beginning.chosen
        start = self._record_start(number, env.get_parallelism(), place)
        checkpoints = directory_of(folder, start)
        announced = AnnouncedRun(
            self.beginning.identifier,
            run.identifier,
            str(folder.journal),
            str(checkpoints),
            os.getpid(),
            self.beginning.ended_jobs,
        )
        once = {ANNOUNCEMENT_KEY: announced.to_json(), java.FIXED_JOB_ID: start.job_id}
        if chosen is not None:
            # The savepoint of another job is not changed.
            mode = "CLAIM" if chosen.candidate.start else "NO_CLAIM"
            once |= {RECOVERY_PATH: java.flink_url(chosen.candidate.path), _CLAIM_MODE: mode}
        self._set = once
        flink_compat.set_options(env, settings | once)
        if writes_files(self.config):
            traces = Path(self.config.get(AgentOptions.TRACE_DIRECTORY)).expanduser()
            point_to(folder, run.name, traces)
        previous_progress = read_progress(folder)
        self._watcher = Watcher(
            folder, number, checkpoints, self.journal, self._first_checkpoint, previous_progress
        )

    def _record_start(self, number: int, parallelism: int, place: str | None) -> Start:
        """Add this start to the record of the job run."""
        run = self.beginning.run
        chosen = self.beginning.chosen
        start = self._start = Start(
            number,
            uuid.uuid4().hex,
            iso_now(),
            parallelism,
            os.getpid(),
            place,
            parent=0 if chosen is None else chosen.candidate.start,
            resumed=0 if chosen is None else chosen.content.number,
            lock=self.beginning.folder.lock_identity(),
        )
        self._run = self._record.write(
            replace(
                run,
                starts=(*run.starts, start),
                stopping=None,
                plans=self.beginning.plans,
                journal=self.journal is not None,
                outputs={LINK: run.outputs.get(LINK) or new_link()},
            )
        )
        return start

    def list_file(self, name: str, stream: DataStream) -> ListFile:
        """Write a stream to the files of a list, and return the list's reader.

        Args:
            name: Its name, which it keeps when the job gets further lists.
            stream: The stream.

        Raises:
            JobFolderError: The files cannot be written.
        """
        outputs = self.beginning.folder.outputs
        link = str(self._run.outputs[LINK])
        assert self._start is not None
        try:
            link_to(outputs, link)
        except OSError as error:
            raise JobFolderError(
                f"the outputs of the job cannot be written to {outputs}",
                found=str(error),
                fix=f"make both directories writable, there and {Path(link).parent}, and free some space",
            ) from error
        file = ListFile(outputs, name, self._run.lineage())
        file.write(stream, link, self._start.number)
        return file

    def remove_options(self, env: StreamExecutionEnvironment) -> None:
        """Remove the options of this job from the environment."""
        java.remove_options(env, self._set)

    def skip_job(self, env: StreamExecutionEnvironment) -> Any:
        """Remove the job from the environment without running it, and return Java's result for it."""
        java.leave_out(env)
        self.beginning.lock.release()
        run = self.beginning.run
        if self.beginning.script is not None:
            self.beginning.script.record_job_finish(run.name)
        return java.skipped_result(run.starts[-1].job_id)

    # -- while it runs ----------------------------------------------------------------

    def follow_job(self, client: Any, log: Path | None = None) -> None:
        """Start to follow the submitted job.

        Args:
            client: Java's client of the job.
            log: The file of its log; None if it has none.
        """
        self._client = client
        assert self._watcher is not None
        with suppress(OSError):
            address = flink_compat.rest_address(client)
            self._run = self._record.set_start(rest=address, log=None if log is None else str(log))
        self._watcher.start()

    def may_restart(self) -> bool:
        """Return True if a failure may restart the job.

        Unless you enable checkpoints yourself, a failure before the first one ends the job at once.
        """
        return self._enabled or self._watcher is None or self._watcher.has_checkpoint()

    def __enter__(self) -> LocalStart:
        self._signals.install_handlers()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over.set()
        self._signals.restore_handlers()
        if self._watcher is not None:
            self._watcher.end()
        with suppress(OSError, ValueError):
            self._record_end(error if isinstance(error, Exception) else None)
            self.beginning.lock.release()
        if isinstance(error, Exception):
            self._exit_if_ended()

    def _first_checkpoint(self) -> None:
        """Record that there is a checkpoint, and remove unneeded ones of earlier starts."""
        self._run = self._record.set(checkpointed=True)
        assert self._start is not None
        resumed = self.beginning.chosen
        resumed_path = None if resumed is None else resumed.candidate.path
        all_candidates = find_candidates(self.beginning.folder, self._run)
        remove_paths(
            [
                candidate.path
                for candidate in all_candidates
                if 0 < candidate.start < self._start.number and candidate.path != resumed_path
            ]
        )
        homes = [directory_of(self.beginning.folder, start) for start in self._run.starts[:-1]]
        remove_paths([home for home in homes if not any(path.is_file() for path in home.rglob("*"))])

    # -- its end ----------------------------------------------------------------------

    def record_finish(self, outputs: list[list[Any]]) -> None:
        """Record that the job has finished, or exit if it was stopped.

        Args:
            outputs: The contents of its lists, for a later start that skips it.

        Raises:
            SystemExit: It was stopped.
        """
        self._over.set()
        if self._signals.code is not None:
            self._ended.wait(self.config.get(AgentOptions.STOP_TIMEOUT).total_seconds() + 60)
            # A savepoint that completed after the timeout has also stopped the job.
            savepoint_names = [
                savepoint.path.name for savepoint in self._savepoints() if self._stopped is None
            ]
            self._stopped = self._stopped or next((f"savepoint {name}" for name in savepoint_names), None)
        if self._stopped is not None:
            self._record.record_stop()
            self._print_stopped(f"with {self._stopped}")
            raise SystemExit(self._signals.code)
        self.beginning.keep_outputs(outputs)
        remove_link(self._run.outputs.get(LINK))
        self._record.set(finished=iso_now())
        if self.beginning.script is not None:
            self.beginning.script.record_job_finish(self._run.name)

    def _record_end(self, error: Exception | None) -> None:
        """Record that this start loses its lock, and if ``error`` or a signal ended it.

        If this cannot be recorded, the process has to hold the lock until it ends.
        """
        values: dict[str, Any] = {}
        if error is not None:
            text = None if self._signals.code is not None else _as_text(error)
            values = {"ended": iso_now(), "error": text}
        self._run = self._record.set_start(lock="", **values)

    def _exit_if_ended(self) -> None:
        """Exit if the job was ended by a signal, without a savepoint.

        Raises:
            SystemExit: The job was ended by a signal.
        """
        if self._signals.code is not None:
            self._print_stopped("without a savepoint; it resumes from its last checkpoint")
            raise SystemExit(self._signals.code)

    def _print_stopped(self, how: str) -> None:
        console.print_line(f"job {self._run.name!r} is stopped {how}; to resume it, run the script again")

    def _stop_job(self) -> None:
        """Stop the job with a savepoint, or cancel it."""
        try:
            self._try_to_stop()
        except Exception as error:
            console.print_line(f"the job cannot be stopped: {error}")
            gateway.kill_jvm()
        finally:
            self._ended.set()

    def _try_to_stop(self) -> None:
        assert self._start is not None
        while self._client is None and not self._ended.wait(0.05):
            pass
        seconds = self.config.get(AgentOptions.STOP_TIMEOUT).total_seconds()
        directory = self.beginning.folder.savepoints / str(self._start.number)
        # Flink removes the checkpoints of a job that stops with a savepoint, so the intent comes first.
        self._record.set(stopping=str(directory.relative_to(self.beginning.folder.path)))
        until = time.monotonic() + seconds
        problem = ""
        while (remaining_seconds := until - time.monotonic()) > 0 and not self._over.is_set():
            # If the job continued after such an attempt, it would resume from the data of that attempt.
            remove_paths([savepoint.path for savepoint in self._savepoints()])
            try:
                savepoint = java.stop_with_savepoint(self._client, directory, remaining_seconds)
                self._stopped = f"savepoint {Path(savepoint).name}"
                return
            except java.SavepointFailed as failed:
                # While tasks start, no savepoint can be taken.
                problem = str(failed)
                self._over.wait(STOP_AGAIN_SECONDS)
        if not self._over.is_set():
            reason = f": {problem}" if problem else ""
            console.print_line(
                f"no savepoint was complete within {seconds:g} s{reason}; the job is cancelled"
            )
            java.cancel_job(self._client)

    def _savepoints(self) -> list[Candidate]:
        """Return the complete savepoints of this start."""
        number = None if self._start is None else self._start.number
        all_candidates = find_candidates(self.beginning.folder, self._run)
        return [
            candidate for candidate in all_candidates if candidate.savepoint and candidate.start == number
        ]


def _as_text(error: Exception) -> str:
    """Return the class and the first line of an error without secrets, in at most 500 characters."""
    if isinstance(error, JobFailedError):
        return redaction.hide(in_one_line(error))[:MOST_ERROR]
    message = error.message if isinstance(error, AgentsError) else str(error)
    first = redaction.hide(message).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:MOST_ERROR]


def say_beginning(beginning: StartDecision, chosen: Chosen | None) -> None:
    """Print the folder of the job's data, and the point from which it resumes."""
    name = beginning.run.name
    run = beginning.run
    console.print_line(f"job {name!r}: data in {beginning.shown}")
    for problem in beginning.damaged:
        console.print_line(f"WARNING: a checkpoint is damaged, an older one is used: {problem}")
    for warning in beginning.warnings:
        console.print_line(f"WARNING: {warning}")
    if chosen is not None:
        over = "" if chosen.candidate.start == 0 else " (to start over: --fresh)"
        console.print_line(f"resuming {name!r} from {chosen.title}{over}")
    elif run.starts:
        console.print_line(
            f"resuming {name!r} from the beginning, as no checkpoint was complete; recorded durable steps "
            "are not repeated (to start over: --fresh)"
        )
    elif run.aside is not None:
        console.print_line(f"starting {name!r} over: its former data is in {beginning.shown_aside}")
    elif run.generation > 1:
        console.print_line(
            f"{name!r} has finished: this is job run {run.generation}, which repeats durable steps"
        )
