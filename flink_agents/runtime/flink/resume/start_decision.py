"""Decides what a start of a local job resumes from, before Flink is involved."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from flink_agents.api.errors import (
    CheckpointDamagedError,
    CheckpointsGoneError,
    JobChangedError,
    JobFolderError,
    JobFolderInUseError,
    OutputsExpiredError,
)
from flink_agents.api.settings.local_jobs import Accept
from flink_agents.runtime.flink.following.console import shown_path
from flink_agents.runtime.flink.resume.checkpoints import (
    Chosen,
    JobProgress,
    choose_checkpoint,
    find_candidates,
    key_of,
    origin_of,
    read_progress,
    remove_paths,
    unreadable_progress_error,
)
from flink_agents.runtime.flink.resume.checks import (
    GivenInputs,
    check_journal,
    check_lists,
    job_run_missing,
    no_journal,
    restarting_sources,
    warning_of,
)
from flink_agents.runtime.flink.resume.java import CheckpointContent
from flink_agents.runtime.flink.resume.job_run import (
    JobFolder,
    JobRun,
    Moment,
    RunRecord,
    find_leftovers,
    record_gone,
    unusable_directory_error,
)
from flink_agents.runtime.flink.resume.policy import Program, ScriptEnd, ScriptStart, check_program

LOCK_SECONDS = 15.0
"""Time that a start waits for an ending process: the JVM of a killed script takes a moment."""

MOST_DEAD_JOBS = 100
"""Maximum number of earlier starts that may hold a lease: any start ends those of the starts before."""

RESTORE_SECONDS = 30.0
"""Maximum time from here until the job commits the contents of its checkpoint."""

_OUTPUTS = "finished.pickle"
_NONE = (0, 0.0)


class Lock(Protocol):
    """A lock that one process can hold."""

    def acquire(self) -> bool:
        """Acquire the lock; return False if another process holds it."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


ReadCheckpoint = Callable[[Path], CheckpointContent]
"""Returns the metadata of the checkpoint in a directory."""


@dataclass(frozen=True)
class Request:
    """The job that a start wants to run.

    Attributes:
        name: Name of the job.
        identifier: The option ``job-identifier``; None if it is not set.
        plans: Fingerprint of each agent's plan.
        fresh: True if it starts a new job run in any case.
        accept: The losses or repetitions that it accepts to resume.
        journal: The file of the journal, if the store has one.
        transaction_timeout: The shortest timeout of the job's transactions, in seconds.
        inputs: Its bounded inputs and sources, for checks when it resumes.
        savepoint: The savepoint of another job that a new job run starts from.
        program: The script; None if it is not a file.
        recorded: Returns the identity of a job run of which a journal outside of the folder has records.
    """

    name: str
    identifier: str | None
    plans: Mapping[str, str]
    fresh: bool = False
    accept: Accept = Accept.NOTHING
    journal: Path | None = None
    transaction_timeout: float | None = None
    inputs: GivenInputs = GivenInputs({}, {})
    savepoint: str | None = None
    program: Program | None = None
    recorded: Callable[[str], str | None] = lambda _: None


@dataclass
class StartDecision:
    """The decision about a start.

    Attributes:
        folder: The folder of the job.
        run: The job run, without this start.
        identifier: The job identifier, without the number of the job run.
        plans: Fingerprint of each agent's plan.
        lock: Held until the job has ended.
        script: The start of the script.
        chosen: The checkpoint to resume from; None if it starts without state.
        skipped: True if the job has finished in a start of the script that ended in the middle.
        damaged: Newer checkpoints that are damaged.
        warnings: Further warnings for the console.
        ended_jobs: Flink's ids of earlier starts whose processes have ended.
    """

    folder: JobFolder
    run: JobRun
    identifier: str
    plans: Mapping[str, str]
    lock: Lock
    script: ScriptStart | None = None
    chosen: Chosen | None = None
    skipped: bool = False
    damaged: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    ended_jobs: list[str] = field(default_factory=list[str])

    @property
    def shown(self) -> str:
        """The folder, as displayed in the console."""
        return shown_path(self.folder.path)

    @property
    def shown_aside(self) -> str:
        """The directory of the old data, as displayed in the console."""
        return shown_path(self.folder.state_dir / (self.run.aside or ""))

    def add_warning(self, warning: str | None) -> None:
        """Add a warning for the console, if there is one."""
        if warning is not None:
            self.warnings.append(warning)

    def keep_outputs(self, outputs: list[list[Any]]) -> None:
        """Store the lists of a finished job, for a later start of the script that skips the job."""
        if outputs:
            self.folder.outputs.mkdir(exist_ok=True)
            (self.folder.outputs / _OUTPUTS).write_bytes(pickle.dumps(outputs))

    def stored_outputs(self) -> list[list[Any]]:
        """Return the lists of a finished job."""
        path = self.folder.outputs / _OUTPUTS
        return pickle.loads(path.read_bytes()) if path.exists() else []


def begin_start(
    folder: JobFolder, request: Request, lock: Lock, read: ReadCheckpoint, script: ScriptStart | None
) -> StartDecision:
    """Lock the folder of a job, and decide what the start resumes from.

    Raises:
        ResumeError: It cannot start.
        StoreError: The journal does not match.
    """
    record = RunRecord(folder)
    _acquire_lock(folder, record, lock)
    try:
        # Before the decision: a new job run replaces the record.
        ended_jobs = _ended_jobs(folder, record)
        beginning = _decide_start(folder, record, request, lock, read, script)
        beginning.ended_jobs = ended_jobs
        return beginning
    except BaseException:
        lock.release()
        raise


def _decide_start(
    folder: JobFolder,
    record: RunRecord,
    request: Request,
    lock: Lock,
    read: ReadCheckpoint,
    script: ScriptStart | None,
) -> StartDecision:
    fresh = request.fresh
    run = None if fresh else _last_run(folder, record, request)
    continued = False
    if run is not None and script is not None:
        continued = script.continues(run.script)
        fresh = script.begins_anew(run.script)
    if run is None or fresh:
        run = _fresh_run(folder, record, request)
    beginning = StartDecision(folder, run, request.identifier or request.name, request.plans, lock, script)
    if run.finished is not None:
        if continued:
            beginning.skipped = True
            return beginning
        _wait_for_end(folder, record, run, script)
        run = _successor_run(run, request)
    if run.starts:
        beginning.add_warning(check_program(run, request.program, request.accept, folder.state_dir))
        beginning.run = replace(
            run,
            script="" if script is None else script.token,
            program=_as_dict(request.program),
            transaction_timeout=request.transaction_timeout,
            # Those that are new are compared at the next start.
            inputs={**request.inputs.lists, **run.inputs},
        )
        # The transactions to commit were opened by an earlier start, with its timeout.
        opened = run.transaction_timeout or request.transaction_timeout
        _resume_run(beginning, replace(request, transaction_timeout=opened), read)
    else:
        _begin_run(beginning, run, record, request, read)
    return beginning


def _begin_run(
    beginning: StartDecision, run: JobRun, record: RunRecord, request: Request, read: ReadCheckpoint
) -> None:
    """Start a job run, and remove the data of the previous one."""
    folder = beginning.folder
    script = beginning.script
    # Written first: after a crash, the next start removes the remaining data of the previous job run.
    new = replace(
        run,
        script="" if script is None else script.token,
        program=_as_dict(request.program),
        inputs=request.inputs.lists,
    )
    if request.savepoint is not None:
        beginning.chosen = _taken_over(request.savepoint, read)
        # The state names its journals by the identity of its own job.
        identity = _run_identity(request, 1)
        new = replace(new, identifier=identity, origin=str(beginning.chosen.candidate.path))
    beginning.run = record.write(new)
    beginning.add_warning(warning_of(request.inputs))
    if run.aside is not None:
        folder.set_aside(run.aside)
    remove_paths([path for path in folder.path.iterdir() if path not in (folder.lock, folder.record)])


def _as_dict(program: Program | None) -> dict[str, str] | None:
    return None if program is None else asdict(program)


def _wait_for_end(folder: JobFolder, record: RunRecord, run: JobRun, script: ScriptStart | None) -> None:
    """Wait for the end of the script in which the job run has finished, for at most :data:`LOCK_SECONDS`."""
    until = time.monotonic() + LOCK_SECONDS
    while script is not None and script.end_of(run.script) is ScriptEnd.NOT_YET:
        if time.monotonic() >= until:
            raise _in_use(folder, record)
        time.sleep(0.1)


def _acquire_lock(folder: JobFolder, record: RunRecord, lock: Lock) -> None:
    try:
        folder.create()
    except OSError as error:
        raise unusable_directory_error(folder.path, error) from error
    until = time.monotonic() + LOCK_SECONDS
    while not lock.acquire():
        if time.monotonic() >= until:
            raise _in_use(folder, record)
        time.sleep(0.1)


def _ended_jobs(folder: JobFolder, record: RunRecord) -> list[str]:
    """Return the ids of the last starts whose processes have ended: each held the lock until then.

    A stopped process still holds it. A copy of the folder has another lock, and proves nothing.
    """
    identity = folder.lock_identity()
    try:
        run = record.read()
    except JobFolderError:  # The decision reports it.
        return []
    starts = () if run is None or not identity else run.starts[-MOST_DEAD_JOBS:]
    return [start.job_id for start in starts if start.lock == identity]


def _in_use(folder: JobFolder, record: RunRecord) -> JobFolderInUseError:
    try:
        run = record.read()
    except JobFolderError:
        run = None
    holder = None
    if run is not None and (last := run.last_start) is not None:
        program = "" if run.program is None else f" of {Program(**run.program).name}"
        holder = f"a start at {last.began}{program}, perhaps process {last.pid}"
    return JobFolderInUseError(
        f"another process runs the job in {folder.path}",
        expected="one process at a time",
        found=holder,
        fix="stop it first; two jobs that run concurrently need different names",
    )


def _last_run(folder: JobFolder, record: RunRecord, request: Request) -> JobRun:
    """Return the last job run; a new one if neither the folder nor the journal knows any."""
    run = record.read()
    if run is not None and run.name != request.name:
        raise JobFolderError(
            f"the folder belongs to another job: {folder.path}",
            expected=f"the job {request.name!r}",
            found=f"the job {run.name!r}, whose name is the same to this file system",
            fix="choose names that differ in more than upper and lower case",
        )
    if run is not None:
        return run
    remaining_names = find_leftovers(folder)
    if remaining_names:
        raise record_gone(folder, remaining_names)
    recorded = None if request.savepoint is not None else request.recorded(request.identifier or request.name)
    if recorded is not None:
        raise job_run_missing(folder, recorded)
    return JobRun(request.name, identifier=_run_identity(request, 1))


def _successor_run(run: JobRun, request: Request) -> JobRun:
    generation = run.generation + 1
    return JobRun(run.name, generation, _run_identity(request, generation))


def _run_identity(request: Request, generation: int) -> str:
    """Return the source of a job run's ids and idempotency keys, which differs for each job run."""
    base = request.identifier or request.name
    return base if generation == 1 else f"{base}@{generation}"


def _fresh_run(folder: JobFolder, record: RunRecord, request: Request) -> JobRun:
    # If the number of earlier job runs is unknown, this number is still unique.
    unknown = JobRun(request.name, generation=int(time.time()))
    try:
        previous_run = record.read()
    except JobFolderError:
        previous_run = unknown
    if previous_run is None and find_leftovers(folder):
        previous_run = unknown
    if previous_run is None and request.savepoint is None:
        recorded = request.recorded(request.identifier or request.name)
        previous_run = None if recorded is None else unknown
    if previous_run is None:
        return JobRun(request.name, identifier=_run_identity(request, 1))
    return replace(_successor_run(previous_run, request), aside=folder.place_aside())


def _taken_over(savepoint: str, read: ReadCheckpoint) -> Chosen:
    """Return the savepoint of another job that a job run starts from.

    Raises:
        CheckpointDamagedError: It is missing or incomplete.
    """
    origin = origin_of(savepoint)
    chosen, problems = choose_checkpoint([origin], read, {})
    if chosen is None:
        raise CheckpointDamagedError(
            f"the job cannot start from the savepoint {savepoint}",
            expected="the directory of a savepoint, with the file _metadata",
            found="; ".join(problems),
            fix="correct local.savepoint, or copy the savepoint again",
        )
    return chosen


def _resume_run(beginning: StartDecision, request: Request, read: ReadCheckpoint) -> None:
    """Choose the checkpoint, and check that everything else matches it."""
    run = beginning.run
    check_lists(run, request.inputs)
    progress = read_progress(beginning.folder)
    chosen = _choose_for_run(beginning, progress, read)
    if chosen is not None:
        _check_agents(run, request)
        _check_transactions(beginning, chosen, request, progress)
        beginning.add_warning(restarting_sources(run, request.inputs, chosen.content.has_finished))
        if run.journal and request.journal is not None and not request.journal.exists():
            raise no_journal(request.journal)
    if progress is None and run.checkpointed:
        # It was written before: without it, an older journal would not be detected.
        raise unreadable_progress_error(beginning.folder, "no such file")
    if progress is not None and progress.journal is not None:
        path = request.journal if request.journal is not None else Path(progress.journal.path)
        accepts_older = request.accept is Accept.OLDER_JOURNAL
        beginning.add_warning(check_journal(progress.journal, path, accepts_older))
    if not beginning.warnings:
        beginning.add_warning(_changed_plans_warning(run, request))
    beginning.chosen = chosen


def _choose_for_run(
    beginning: StartDecision, progress: JobProgress | None, read: ReadCheckpoint
) -> Chosen | None:
    """Return the newest undamaged checkpoint of the job run; None if it never had one."""
    folder, run = beginning.folder, beginning.run
    all_candidates = find_candidates(folder, run)
    digests = {} if progress is None else progress.digests
    chosen, beginning.damaged = choose_checkpoint(all_candidates, read, digests)
    if chosen is None:
        if all_candidates:
            raise _damaged_error(folder, beginning.damaged)
        if run.checkpointed or _newest_known(run, progress) > _NONE:
            raise _checkpoints_gone_error(folder, run)
    elif (all_candidates[0].start, all_candidates[0].number) < _newest_known(run, progress):
        raise _checkpoints_gone_error(folder, run)
    return chosen


def _changed_plans_warning(run: JobRun, request: Request) -> str | None:
    changed = sorted(name for name, plan in request.plans.items() if run.plans.get(name) not in (None, plan))
    text = "has changed since the last start; unfinished runs resume if they fit the new one"
    return f"the plan of {', '.join(changed)} {text}" if changed else None


def _newest_known(run: JobRun, progress: JobProgress | None) -> tuple[int, float]:
    """Return the start and the number of the newest checkpoint that must exist.

    Flink removes it only if the job finishes. A savepoint counts as the newest of its start.
    """
    last = run.last_start
    if last is None:
        return _NONE
    if last.stopped:
        return last.number, float("inf")
    if progress is not None and progress.start == last.number and progress.checkpoint is not None:
        return last.number, progress.checkpoint
    # No checkpoint of the last start is known, so the one from which it resumed is the newest. If it resumed
    # from no checkpoint of its job run, the job run may still have checkpoints whose progress is lost.
    return (last.parent, last.resumed) if last.parent else (int(run.checkpointed), 0)


def _checkpoints_gone_error(folder: JobFolder, run: JobRun) -> CheckpointsGoneError:
    last = run.last_start
    if last is not None and last.stopped:
        return CheckpointsGoneError(
            f"the job {run.name!r} was stopped with a savepoint, which is gone",
            expected=f"a savepoint in {folder.savepoints / str(last.number)}",
            found="it was deleted or moved, and older checkpoints would repeat outputs",
            fix="restore the folder from a backup, or start over with --fresh",
        )
    return CheckpointsGoneError(
        f"the job {run.name!r} had checkpoints, but the newest ones are gone",
        expected=f"a checkpoint in {folder.checkpoints}",
        found="the job may have finished just before its process died, because Flink removes them then; or "
        "they were deleted",
        fix="if all outputs are there, start over with --fresh; else restore the folder from a backup",
    )


def _damaged_error(folder: JobFolder, problems: list[str]) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"no checkpoint in {folder.path} is complete",
        found="; ".join(problems),
        fix="restore the folder from a backup, or start over with --fresh",
    )


def _check_agents(run: JobRun, request: Request) -> None:
    """Check that the job still has all agents of the job run: Flink cannot restore the state of others."""
    missing = sorted(set(run.plans) - set(request.plans))
    if missing:
        raise JobChangedError(
            f"the job {run.name!r} has lost {', '.join(f'agent {name!r}' for name in missing)}, whose state "
            "is in the checkpoint",
            expected=", ".join(sorted(run.plans)),
            found=", ".join(sorted(request.plans)) or "no agent",
            fix="apply the agent with its old name until the job run has finished: apply(..., name='...'); "
            "or start over with --fresh",
        )


def _check_transactions(
    beginning: StartDecision, chosen: Chosen, request: Request, progress: JobProgress | None
) -> None:
    """Check that brokers still hold the transactions that the checkpoint commits."""
    timeout = request.transaction_timeout
    candidate = chosen.candidate
    # A stopped start has committed them; for a savepoint of another job, that job has.
    committed = {0, *(start.number for start in beginning.run.starts if start.stopped)}
    if timeout is None or (candidate.savepoint and candidate.start in committed):
        return
    noted = {} if progress is None else progress.open_since
    since = noted.get(key_of(candidate.path), Moment(candidate.completed_at.timestamp()))
    age = since.seconds_until(Moment.now())
    # The job commits them when it has been restored, not now.
    if age is not None and age + min(RESTORE_SECONDS, timeout / 10) < timeout:
        return
    if request.accept is Accept.LOST_OUTPUTS:
        beginning.add_warning("outputs that were not committed when the job ended may be lost")
        return
    then = f"{datetime.fromtimestamp(since.wall):%Y-%m-%d %H:%M:%S}"
    if age is None:
        age_text = f"the clock was set back: it is before {then}, when they were written"
        clock = "; if the clock is wrong, set it first"
    else:
        age_text = f"{age:.0f} s, since {then}"
        clock = ""
    raise OutputsExpiredError(
        f"the job {beginning.run.name!r} was down for longer than the transactions of its outputs are kept",
        expected=f"less than {timeout:.0f} s since the outputs were written",
        found=age_text,
        fix="set local.accept to lost-outputs to resume without uncommitted outputs, or start over with "
        "--fresh; for the future, raise transaction.max.timeout.ms of the brokers, and transaction_timeout "
        f"of the sink if you set it{clock}",
    )
