"""``flink-agents cluster``, ``run``, ``stop`` and ``cancel``: a cluster on this machine, and jobs on any."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.cli.errors import prints_errors
from flink_agents.cli.texts import named_values

if TYPE_CHECKING:
    from flink_agents.runtime.flink.clusters.jobs import RetainedCheckpoint
    from flink_agents.runtime.flink.following.rest import ClusterRest
    from flink_agents.runtime.flink.launch.standalone import ClusterStatus, StandaloneCluster

NOT_RUNNING = 1
"""Exit code of ``status`` if no cluster runs."""

NOT_FINISHED = 1
"""Exit code of ``run`` if the job was cancelled."""

INTERRUPTED = 130
"""Exit code of ``run`` if you interrupted it."""

NOT_CONFIRMED = 1
"""Exit code of ``cancel`` without a confirmation."""

cluster_app = typer.Typer(help="Run a standalone Flink cluster on this machine.", no_args_is_help=True)

Data = Annotated[Path | None, typer.Option("--data", help="Its directory. Default: .flink-agents/cluster.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="URL",
        help="REST address of the cluster. Default: the one in .flink-agents/cluster, else localhost:8081.",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The cluster that 'cluster start --data DIR' started."),
]
Job = Annotated[str | None, typer.Argument(help="Id or name of the job. Default: the only running one.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", "-D", help="An option of Flink, name=value; any number.")
]


@cluster_app.command("start")
@prints_errors
def cluster_start(
    data: Data = None,
    taskmanagers: Annotated[
        int | None, typer.Option(min=1, help="Number of TaskManagers. Default: as before, else 2.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Slots of each TaskManager. Default: as before, else 2.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="REST port. Default: as before, else 8081.")
    ] = None,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Start a JobManager and TaskManagers, or the missing ones, and wait until they accept jobs."""
    cluster = _own_cluster(data)
    started = cluster.start(taskmanagers, slots, port, named_values(option, "--option"))
    _print_status(cluster.status(), as_json, "Flink runs" if started else "Flink already runs")


@cluster_app.command("stop")
@prints_errors
def cluster_stop(data: Data = None) -> None:
    """Stop the cluster and its jobs. All files are kept."""
    typer.echo("Flink is stopped" if _own_cluster(data).stop() else "no Flink runs here")


@cluster_app.command("status")
@prints_errors
def cluster_status(data: Data = None, as_json: Json = False) -> None:
    """Show processes, slots and jobs, with their last failure. Exits with 1 if no cluster runs."""
    status = _own_cluster(data).status()
    _print_status(status, as_json, "Flink runs" if status.running else "Flink does not run")
    if not status.running:
        raise typer.Exit(NOT_RUNNING)


@prints_errors
def run(
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The job, a Python file.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script, after --.")] = None,
    cluster: Address = None,
    data: Directory = None,
    savepoint: Annotated[
        str | None, typer.Option(help="Start with the state of this savepoint or checkpoint.")
    ] = None,
    py_files: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, help="A directory, file or zip of modules for the workers; any number of them."
        ),
    ] = None,
    parallelism: Annotated[int | None, typer.Option(min=1, help="Default parallelism of the job.")] = None,
    option: Options = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end of the job.")] = False,
    skip_state: Annotated[
        bool,
        typer.Option("--allow-non-restored-state", help="Ignore state without an operator in the job."),
    ] = False,
    outputs: Annotated[
        bool, typer.Option("--outputs/--no-outputs", help="Show the output of TaskManagers.")
    ] = True,
    local: Annotated[
        bool, typer.Option("--local", help="Run the job on this machine, without a cluster.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With --local: start over, and move old data aside.")
    ] = False,
    java_trace: Annotated[
        bool, typer.Option("--java-trace", help="Print Flink's whole message if the job fails.")
    ] = False,
) -> None:
    """Submit a job to a cluster and follow it, or run it on this machine.

    The command shows the job's output, its state, and each restart with its reason. With --local, a job with
    a name resumes where its last run stopped.
    """
    if fresh and not local:
        raise typer.BadParameter("--fresh goes with --local; on a cluster, omit --savepoint.")
    if local:
        cluster_options = {"--cluster": cluster, "--data": data, "--py-files": py_files, "--detach": detach}
        environ = {"FLINK_AGENTS_LOCAL_FRESH": "true"} if fresh else {}
        if savepoint is not None:
            environ["FLINK_AGENTS_LOCAL_SAVEPOINT"] = savepoint
        if java_trace:
            environ["FLINK_AGENTS_LOCAL_JAVA_TRACE"] = "true"
        _run_here(
            script, arguments or (), environ, parallelism, named_values(option, "--option"), cluster_options
        )
    from flink_agents.api.errors import JobFailedError
    from flink_agents.runtime.flink.clusters.run import JobRequest, check_savepoint, run_on_cluster

    rest_client = _rest_client(cluster, data)
    savepoint = directory(savepoint)
    if savepoint is not None:
        check_savepoint(savepoint, rest_client.address)
    request = JobRequest(
        script,
        arguments or (),
        savepoint,
        py_files or (),
        parallelism,
        detach,
        named_values(option, "--option"),
        skip_state,
    )
    try:
        state = run_on_cluster(rest_client, request, _print_line, typer.echo, outputs)
    except JobFailedError as error:
        if java_trace:
            _print_line(error.java_trace)
        raise
    except KeyboardInterrupt:
        _print_line("interrupted; a submitted job keeps running; stop it with: flink-agents stop")
        raise typer.Exit(INTERRUPTED) from None
    if state not in (None, "FINISHED"):
        raise typer.Exit(NOT_FINISHED)


def _run_here(
    script: Path,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    parallelism: int | None,
    options: dict[str, str],
    of_clusters: Mapping[str, object],
) -> None:
    """Replace this process by the script, so that signals and exit codes are those of the script.

    Never returns.

    Args:
        script: The script.
        arguments: Its arguments.
        environ: Variables to add to the environment.
        parallelism: The option ``--parallelism``, which is rejected.
        options: Options of Flink, which are rejected.
        of_clusters: Values of options that only clusters take, by name; those with a value are rejected.

    Raises:
        typer.BadParameter: An option is only for clusters.
    """
    rejected_options = [name for name, value in of_clusters.items() if value]
    if rejected_options:
        raise typer.BadParameter(f"{', '.join(rejected_options)} and --local exclude each other.")
    if options or parallelism is not None:
        raise typer.BadParameter("--option and --parallelism are for clusters; set them in the script.")
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, str(script), *arguments], {**os.environ, **environ})


@prints_errors
def stop(
    job: Job = None,
    cluster: Address = None,
    data: Directory = None,
    savepoint: Annotated[
        bool, typer.Option("--savepoint", hidden=True, help="As always: stop takes a savepoint.")
    ] = True,
    savepoint_dir: Annotated[
        str | None, typer.Option(help="Directory or URL of the savepoint. Default: the cluster's setting.")
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="End windows first, for a job that you never resume.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop a job with a savepoint, and print how to resume it.

    'run --savepoint PLACE' resumes it. If the savepoint fails, the job keeps running.
    """
    from flink_agents.runtime.flink.clusters import jobs as cluster_jobs

    rest_client = _rest_client(cluster, data)
    target_job = cluster_jobs.find_job(rest_client, job)
    place = cluster_jobs.stop_with_savepoint(rest_client, target_job, directory(savepoint_dir), drain)
    if as_json:
        typer.echo(json.dumps({"id": target_job.id, "name": target_job.name, "savepoint": place}))
        return
    _print_line(f"job {target_job.name!r} is stopped; resume it by: {_resume_hint(place)}")
    typer.echo(place)


@prints_errors
def cancel(
    job: Job = None,
    cluster: Address = None,
    data: Directory = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """End a job without a savepoint: its work since the last checkpoint is lost.

    It lists what is lost, and asks for confirmation.
    """
    from flink_agents.runtime.flink.clusters import jobs as cluster_jobs

    rest_client = _rest_client(cluster, data)
    target_job = cluster_jobs.find_job(rest_client, job)
    checkpoint = cluster_jobs.retained_checkpoint(rest_client, target_job)
    _print_line(f"job {target_job.name!r} has no savepoint if it is cancelled; 'flink-agents stop' takes one")
    _print_line(f"  lost: {_lost_state(checkpoint)}")
    if checkpoint is not None:
        _print_line("  kept: the last checkpoint")
    if not yes:
        if not is_terminal():
            _print_line("cannot ask for confirmation: add --yes to cancel it; nothing was done")
            raise typer.Exit(NOT_CONFIRMED)
        if not typer.confirm(f"cancel {target_job.name!r}?", err=True):
            _print_line("nothing was done")
            raise typer.Exit(NOT_CONFIRMED)
    cluster_jobs.cancel(rest_client, target_job)
    # Until then the job took checkpoints, each of which can replace the previous one.
    checkpoint = cluster_jobs.retained_checkpoint(rest_client, target_job)
    if as_json:
        place = None if checkpoint is None else checkpoint.place
        typer.echo(json.dumps({"id": target_job.id, "name": target_job.name, "checkpoint": place}))
    else:
        resume_text = "" if checkpoint is None else f"; resume it by: {_resume_hint(checkpoint.place)}"
        _print_line(f"job {target_job.name!r} is cancelled{resume_text}")


def _resume_hint(place: str) -> str:
    return f"flink-agents run SCRIPT --savepoint {shlex.quote(place)}"


def is_terminal() -> bool:
    """Return True if stdin is a terminal, where a person can answer."""
    return sys.stdin.isatty()


def _lost_state(checkpoint: RetainedCheckpoint | None) -> str:
    """Describe what a cancelled job loses, for a job with the given last checkpoint."""
    state = "memory, runs that wait for signals or approvals, delayed events and timers"
    if checkpoint is None:
        return f"all of its state: {state}. No checkpoint stays"
    since = f"what came after the checkpoint of {checkpoint.time}"
    return f"{since}: {state}. Inputs since then are read again on resume"


def _own_cluster(data: Path | None) -> StandaloneCluster:
    from flink_agents.runtime.flink.launch.standalone import DEFAULT_DIRECTORY, StandaloneCluster

    return StandaloneCluster(data or DEFAULT_DIRECTORY)


def _rest_client(address: str | None, data: Path | None = None) -> ClusterRest:
    from flink_agents.api.errors import ClusterUnavailableError
    from flink_agents.runtime.flink.following.rest import ClusterRest
    from flink_agents.runtime.flink.launch.standalone import default_address

    if data is not None:
        if address is not None:
            raise typer.BadParameter("--cluster and --data exclude each other.")
        status = _own_cluster(data).status()
        if status.address is None or not status.jobmanagers:
            raise ClusterUnavailableError(
                f"no running cluster in {data}",
                expected="a cluster that 'cluster start' with the same --data has started",
                found="no directory" if not data.exists() else "a directory without a running JobManager",
                fix=f"flink-agents cluster start --data {data}",
            )
        return ClusterRest(status.address)
    return ClusterRest(address or default_address())


def address_of(data: Path, address: str | None) -> str:
    """Return the REST address of the cluster with files in ``data``; reject another ``address`` beside it."""
    return _rest_client(address, data).address


def directory(text: str | None) -> str | None:
    """Return a directory as the URL that Flink needs: absolute, with ``file:``.

    URLs and None are unchanged.
    """
    # Flink prints file:/directory, too. A scheme has two letters or more, unlike a drive of Windows.
    if text is None or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        return text
    return Path(text).absolute().as_uri()


def _print_line(line: str) -> None:
    typer.echo(line, err=True)


def _job_rows(status: ClusterStatus) -> list[dict[str, Any]]:
    """Return the jobs of a cluster for JSON; none if the cluster does not run or does not answer."""
    from flink_agents.api.errors import ClusterError
    from flink_agents.runtime.flink.clusters.jobs import dead_letters, jobs_of, last_failure, shown_state
    from flink_agents.runtime.flink.following.rest import ClusterRest

    rest_client = ClusterRest(status.address or "")
    try:
        jobs = jobs_of(rest_client) if status.running else []
    except ClusterError:
        return []
    return [
        {
            "id": job.id,
            "name": job.name,
            "state": shown_state(job, failure := last_failure(rest_client, job)),
            "failure": failure,
            "dead_letters": {} if job.ended else dead_letters(rest_client, job.id),
        }
        for job in jobs
    ]


def _print_status(status: ClusterStatus, as_json: bool, head: str) -> None:
    from flink_agents.runtime.flink.clusters.jobs import letter_lines

    job_rows = _job_rows(status)
    if as_json:
        return _print_json(status, job_rows)
    typer.echo(f"{head} at {status.address}" if status.running else head)
    typer.echo(f"  directory     {status.directory}")
    if status.running:
        processes = ", ".join(map(str, status.taskmanagers)) or "none"
        typer.echo(f"  TaskManagers  {status.registered}: processes {processes}")
        typer.echo(f"  slots         {status.free_slots} of {status.slots} free")
    elif status.jobmanagers or status.taskmanagers:
        problem = "does not answer" if status.jobmanagers else "has crashed, with its jobs"
        typer.echo(f"  JobManager    {problem}: start it again with 'flink-agents cluster start'")
    for job in job_rows:
        typer.echo(f"  job           {job['id']} {job['name']!r} {job['state']}")
        if job["failure"] is not None:
            typer.echo(f"    {job['failure']}")
        for line in letter_lines(job["dead_letters"]):
            typer.echo(f"    {line}")


def _print_json(status: ClusterStatus, jobs: Sequence[Mapping[str, Any]]) -> None:
    document = {
        "running": status.running,
        "address": status.address,
        "directory": str(status.directory),
        "jobmanager": status.jobmanagers,
        "taskmanagers": status.taskmanagers,
        "registered": status.registered,
        "slots": status.slots,
        "free_slots": status.free_slots,
        "jobs": jobs,
    }
    typer.echo(json.dumps(document, indent=2))
