"""Checks of ``flink-agents doctor --cluster``: if a cluster can run Python jobs one after another.

Its jobs are checked, too: if they run, recover, and get stuck. All checks use Flink's REST interface. It
returns the class path and the configuration of the JobManager; those of a TaskManager are at the start of its
log.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.client import HTTPException
from importlib import metadata
from typing import Any
from urllib.parse import quote

from flink_agents.cli.checks.machine import CheckResult
from flink_agents.runtime.flink.following.backpressure import settled_flow
from flink_agents.runtime.flink.following.rest import WANTED_ENDS, ClusterRest, last_failure
from flink_agents.runtime.flink.launch.flink_home import PARENT_FIRST, PYTHON_JAR, SHARED_CLASSES

SECONDS = 10
LOG_BYTES = 1 << 19

_RESOLVE_ORDER = "classloader.resolve-order"
_LIB_FIX = (
    f"copy opt/{PYTHON_JAR}-*.jar of PyFlink into lib of Flink, on each machine, and restart it "
    "(docs/running.md#on-a-cluster)"
)
_PATTERNS = ";".join(SHARED_CLASSES)
_PATTERNS_FIX = f"set {PARENT_FIRST}: {_PATTERNS} in config.yaml, on each machine, and restart it"
_ONE_JOB = "each TaskManager process runs one Python job only"

Ask = Callable[[str], Any]
"""Returns the JSON answer, or the text of a log, for a path."""


def cluster_checks(address: str, ask: Ask | None = None) -> list[CheckResult]:
    """Check a cluster: its version, its class loading, and its jobs.

    Args:
        address: Address of its REST interface, such as ``http://localhost:8081``.
        ask: Returns the answer for a path. Default: requests it over HTTP.
    """
    ask = ask or partial(_get_answer, ClusterRest(address).address)
    try:
        overview = ask("/overview")
        version = str(overview["flink-version"])
        slots = int(overview["slots-total"])
        managers = [str(manager["id"]) for manager in ask("/taskmanagers")["taskmanagers"]]
        configuration = {setting["key"]: setting["value"] for setting in ask("/jobmanager/config")}
        class_path = ask("/jobmanager/environment")["classpath"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "start the cluster, or pass the address of its REST interface: http://HOST:8081"
        return [CheckResult("cluster", "fail", f"{address}: {_error_reason(error)}", fix)]
    return [
        _check_version(version, len(managers), slots),
        _check_jar("JobManager", " ".join(class_path)),
        _check_patterns("JobManager", configuration),
        *(check for manager in managers for check in _manager_checks(manager, ask)),
        *job_checks(ask, configuration),
    ]


def _check_version(version: str, managers: int, slots: int) -> CheckResult:
    summary = f"Flink {version}, {managers} TaskManagers with {slots} slots"
    try:
        pyflink = metadata.version("apache-flink")
    except metadata.PackageNotFoundError:
        pyflink = ""
    if pyflink.split(".")[:2] != version.split(".")[:2]:
        fix = f"install the version of apache-flink that the cluster has: {version}"
        return CheckResult("cluster", "fail", f"{summary}; here PyFlink {pyflink or 'missing'}", fix)
    if managers == 0:
        return CheckResult("cluster", "warn", summary, "start a TaskManager; jobs wait until there is one")
    return CheckResult("cluster", "ok", summary)


def _check_jar(where: str, class_path: str) -> CheckResult:
    match = re.search(rf"{PYTHON_JAR}[\w.-]*\.jar", class_path)
    if match is None:
        missing = f"no {PYTHON_JAR}-*.jar in lib: {_ONE_JOB}"
        return CheckResult(f"{where}, class path", "warn", missing, _LIB_FIX)
    return CheckResult(f"{where}, class path", "ok", match[0])


def _check_patterns(where: str, configuration: Mapping[str, str]) -> CheckResult:
    name = f"{where}, class loading"
    if configuration.get(_RESOLVE_ORDER, "").lower() == "parent-first":
        return CheckResult(name, "ok", f"{_RESOLVE_ORDER}: parent-first")
    patterns = configuration.get(PARENT_FIRST, "")
    missing = [pattern for pattern in SHARED_CLASSES if pattern not in patterns.split(";")]
    if missing:
        problem = f"{PARENT_FIRST} lacks {', '.join(missing)}: {_ONE_JOB}"
        return CheckResult(name, "warn", problem, _PATTERNS_FIX)
    return CheckResult(name, "ok", f"{PARENT_FIRST}: {patterns}")


def _manager_checks(manager: str, ask: Ask) -> list[CheckResult]:
    where = f"TaskManager {manager}"
    try:
        log = ask(f"/taskmanagers/{manager}/log")
    except (OSError, ValueError) as error:
        return [_unknown_result(where, _error_reason(error))]
    class_path = re.search(r"Classpath: (\S+)", log)
    if class_path is None:
        return [_unknown_result(where, "its log does not start with its class path")]
    lines = re.findall(r"Loading configuration property: (\S+), (.*)", log)
    configuration = {key: value.strip("'\" ") for key, value in lines}
    return [_check_jar(where, class_path[1]), _check_patterns(where, configuration)]


def _unknown_result(where: str, why: str) -> CheckResult:
    return CheckResult(
        where, "warn", f"not known: {why}", "check that it has the same setup as the JobManager"
    )


def _get_answer(address: str, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=SECONDS) as answer:
            if path.endswith("/log"):
                return answer.read(LOG_BYTES).decode("utf-8", "replace")
            return json.loads(answer.read())
    except (RecursionError, HTTPException) as error:
        raise ValueError(f"the answer cannot be read: {error!r}") from error


def _error_reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
    return f"{type(error).__name__}: {error}"


UNKNOWN = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors if an answer is missing or has another form."""

_DIRECTORIES = ("execution.checkpointing.dir", "state.checkpoints.dir")
_NEVER = 10**15
"""An interval in milliseconds above which there are no checkpoints."""

_SLOW = 30_000
"""An interval in milliseconds above which repeated work and the latency of exactly-once sinks are large."""


def job_checks(ask: Ask, configuration: Mapping[str, str]) -> list[CheckResult]:
    """Check slots, and the jobs of a cluster that have not ended.

    Args:
        ask: Returns the answer of Flink's REST interface for a path.
        configuration: Configuration of the JobManager by key.
    """
    results: list[CheckResult] = []
    try:
        overview = ask("/overview")
        if overview.get("slots-total") and overview.get("slots-available") == 0:
            fix = "start another TaskManager, or raise taskmanager.numberOfTaskSlots"
            results.append(CheckResult("slots", "warn", "no slot is free: another job would wait", fix))
        jobs = [job for job in ask("/jobs/overview")["jobs"] if job["state"] not in WANTED_ENDS]
    except UNKNOWN:
        return results
    for job in jobs:
        problems = [problem for check in _CHECKS for problem in _run_check(check, ask, job, configuration)]
        results += problems or [
            CheckResult(_job_name(job), "ok", f"{job['state'].lower()}, with checkpoints")
        ]
    return results


def _run_check(
    check: Any, ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]
) -> list[CheckResult]:
    try:
        return list(check(ask, job, configuration))
    except UNKNOWN:
        # A job may end meanwhile, or Flink may have another version: nothing is guessed.
        return []


def _job_name(job: Mapping[str, Any]) -> str:
    return f"job {job['name']}"


def _check_runs(ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]) -> Iterator[CheckResult]:
    if job["state"] in ("RUNNING", "INITIALIZING", "CREATED"):
        return
    failure = last_failure(ask, job["jid"])
    why = failure.cause if failure else "unknown"
    fix = "fix the exception; if it has a code, see: flink-agents explain CODE"
    yield CheckResult(_job_name(job), "fail", f"{job['state'].lower()}; the last failure: {why}", fix)


def _check_recovery(
    ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]
) -> Iterator[CheckResult]:
    try:
        interval = int(ask(f"/jobs/{job['jid']}/checkpoints/config")["interval"])
    except UNKNOWN:
        interval = _NEVER
    if not 0 < interval < _NEVER:
        fix = "set execution.checkpointing.interval: 1s, or env.stream_env.enable_checkpointing(1000)"
        yield CheckResult(
            f"{_job_name(job)}, checkpoints", "fail", "off: a failure loses state and inputs", fix
        )
        return
    if interval > _SLOW:
        fix = "set execution.checkpointing.interval to 1 to 10 seconds"
        summary = (
            f"every {interval / 1000:g} s: journals grow, and outputs of exactly-once sinks are delayed by "
            "that time"
        )
        figures = {"interval_ms": interval}
        yield CheckResult(f"{_job_name(job)}, checkpoints", "warn", summary, fix, figures)
    place = next((configuration[name] for name in _DIRECTORIES if configuration.get(name)), "")
    managers = {str(manager["id"]).partition(":")[0] for manager in ask("/taskmanagers")["taskmanagers"]}
    name = f"{_job_name(job)}, checkpoint directory"
    fix = "set execution.checkpointing.dir to a directory that all machines share, such as s3://..."
    if not place:
        yield CheckResult(name, "warn", "none: checkpoints are lost with the JobManager", fix)
    elif place.startswith(("file:", "/")) and len(managers) > 1:
        yield CheckResult(
            name, "warn", f"{place} is local, and TaskManagers are on {len(managers)} hosts", fix
        )


def _check_checkpoints(
    ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]
) -> Iterator[CheckResult]:
    latest = ask(f"/jobs/{job['jid']}/checkpoints").get("latest") or {}
    failed = latest.get("failed") or {}
    done = latest.get("completed") or {}
    if failed and int(failed.get("id", 0)) > int(done.get("id", 0)):
        why = str(failed.get("failure_message", "no reason is given"))[:200]
        fix = "see the log of the JobManager; a task under backpressure, or a full disk, is frequent"
        yield CheckResult(f"{_job_name(job)}, checkpoints", "fail", f"the last one failed: {why}", fix)


def _check_flow(ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]) -> Iterator[CheckResult]:
    for bottleneck in settled_flow(ask, job["jid"]).bottlenecks():
        if any(vertex.level == "high" for vertex in bottleneck.blocked):
            yield CheckResult(
                f"{_job_name(job)}, backpressure", "warn", str(bottleneck).rstrip("."), bottleneck.advice
            )


def _check_backpressure(
    ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]
) -> Iterator[CheckResult]:
    for vertex in ask(f"/jobs/{job['jid']}").get("vertices", ()):
        place = f"/jobs/{job['jid']}/vertices/{vertex['id']}/subtasks/metrics"
        names = [str(metric["id"]) for metric in ask(place)]
        counters = [name for name in names if _STUCK.search(name)]
        metrics = ask(f"{place}?get={','.join(map(quote, counters))}&agg=sum") if counters else ()
        if number := int(sum(float(metric.get("sum", 0)) for metric in metrics)):
            fix = "flink-agents top --path TRACE lists unfinished runs; then flink-agents why KEY"
            summary = f"{vertex['name']}: {number} run(s) took longer than run.stuck-after, or still do"
            figures = {"stuck_runs": number}
            yield CheckResult(f"{_job_name(job)}, stuck runs", "warn", summary, fix, figures)


_STUCK = re.compile(r"(?:^|\.)flink_agents\..+\.runs_stuck$")

_CHECKS = (_check_runs, _check_recovery, _check_checkpoints, _check_flow, _check_backpressure)
