"""Checks of ``flink-agents doctor --cluster`` about its jobs: if they run, recover, and get stuck."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from flink_agents.cli.checks.machine import CheckResult

Ask = Callable[[str], Any]

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
        ask: Sends requests to Flink's REST interface.
        configuration: Configuration of the JobManager.
    """
    found: list[CheckResult] = []
    try:
        overview = ask("/overview")
        if overview.get("slots-total") and overview.get("slots-available") == 0:
            fix = "start another TaskManager, or raise taskmanager.numberOfTaskSlots"
            found.append(CheckResult("slots", "warn", "no slot is free: another job would wait", fix))
        jobs = [job for job in ask("/jobs/overview")["jobs"] if job["state"] not in ("FINISHED", "CANCELED")]
    except UNKNOWN:
        return found
    for job in jobs:
        problems = [one for check in _CHECKS for one in _harmless(check, ask, job, configuration)]
        found += problems or [CheckResult(_name(job), "ok", f"{job['state'].lower()}, with checkpoints")]
    return found


def _harmless(
    check: Any, ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]
) -> list[CheckResult]:
    try:
        return list(check(ask, job, configuration))
    except UNKNOWN:
        # A job may end meanwhile, or Flink may have another version: nothing is guessed.
        return []


def _name(job: Mapping[str, Any]) -> str:
    return f"job {job['name']}"


def _runs(ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]) -> Iterator[CheckResult]:
    if job["state"] in ("RUNNING", "INITIALIZING", "CREATED"):
        return
    entries = (
        ask(f"/jobs/{job['jid']}/exceptions?maxExceptions=1").get("exceptionHistory", {}).get("entries", [])
    )
    why = str(entries[0].get("stacktrace", "")).strip().partition("\n")[0][:200] if entries else "unknown"
    fix = "fix the exception; if it has a code, see: flink-agents explain CODE"
    yield CheckResult(_name(job), "fail", f"{job['state'].lower()}; the last failure: {why}", fix)


def _recovers(ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]) -> Iterator[CheckResult]:
    try:
        interval = int(ask(f"/jobs/{job['jid']}/checkpoints/config")["interval"])
    except UNKNOWN:
        interval = _NEVER
    if not 0 < interval < _NEVER:
        fix = "set execution.checkpointing.interval: 1s, or env.stream_env.enable_checkpointing(1000)"
        yield CheckResult(f"{_name(job)}, checkpoints", "fail", "off: a failure loses state and inputs", fix)
        return
    if interval > _SLOW:
        fix = "set execution.checkpointing.interval to 1 to 10 seconds"
        found = (
            f"every {interval / 1000:g} s: journals grow, and outputs of exactly-once sinks are delayed by "
            "that time"
        )
        yield CheckResult(f"{_name(job)}, checkpoints", "warn", found, fix)
    place = next((configuration[name] for name in _DIRECTORIES if configuration.get(name)), "")
    managers = {str(one["id"]).partition(":")[0] for one in ask("/taskmanagers")["taskmanagers"]}
    name = f"{_name(job)}, checkpoint directory"
    fix = "set execution.checkpointing.dir to a directory that all machines share, such as s3://..."
    if not place:
        yield CheckResult(name, "warn", "none: checkpoints are lost with the JobManager", fix)
    elif place.startswith(("file:", "/")) and len(managers) > 1:
        yield CheckResult(
            name, "warn", f"{place} is local, and TaskManagers are on {len(managers)} hosts", fix
        )


def _completes(ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]) -> Iterator[CheckResult]:
    latest = ask(f"/jobs/{job['jid']}/checkpoints").get("latest") or {}
    failed, done = latest.get("failed") or {}, latest.get("completed") or {}
    if failed and int(failed.get("id", 0)) > int(done.get("id", 0)):
        why = str(failed.get("failure_message", "no reason is given"))[:200]
        fix = "see the log of the JobManager; a task under backpressure, or a full disk, is frequent"
        yield CheckResult(f"{_name(job)}, checkpoints", "fail", f"the last one failed: {why}", fix)


def _flows(ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]) -> Iterator[CheckResult]:
    for vertex in ask(f"/jobs/{job['jid']}").get("vertices", ()):
        told = ask(f"/jobs/{job['jid']}/vertices/{vertex['id']}/backpressure")
        if told.get("backpressureLevel") == "high":
            fix = "check downstream operators: flink-agents top; raise its parallelism, or run.max-in-flight"
            found = f"{vertex['name']}: downstream operators do not keep up"
            yield CheckResult(f"{_name(job)}, backpressure", "warn", found, fix)


def _stuck(ask: Ask, job: Mapping[str, Any], configuration: Mapping[str, str]) -> Iterator[CheckResult]:
    for vertex in ask(f"/jobs/{job['jid']}").get("vertices", ()):
        place = f"/jobs/{job['jid']}/vertices/{vertex['id']}/subtasks/metrics"
        names = [str(one["id"]) for one in ask(place)]
        counters = [one for one in names if _STUCK.search(one)]
        found = ask(f"{place}?get={','.join(map(quote, counters))}&agg=sum") if counters else ()
        if number := int(sum(float(one.get("sum", 0)) for one in found)):
            fix = "flink-agents top --path TRACE lists unfinished runs; then flink-agents why KEY"
            said = f"{vertex['name']}: {number} run(s) took longer than run.stuck-after, or still do"
            yield CheckResult(f"{_name(job)}, stuck runs", "warn", said, fix)


_STUCK = re.compile(r"(?:^|\.)flink_agents\..+\.runs_stuck$")

_CHECKS = (_runs, _recovers, _completes, _flows, _stuck)
