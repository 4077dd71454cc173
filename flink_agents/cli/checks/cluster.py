"""Checks of ``flink-agents doctor --cluster``: if a cluster can run Python jobs one after another.

All checks use Flink's REST interface. It returns the class path and the configuration of the JobManager;
those of a TaskManager are at the start of its log.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from typing import Any

from flink_agents.cli.checks.jobs import job_checks
from flink_agents.cli.checks.machine import CheckResult
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
    """Check a cluster.

    Args:
        address: Of its REST interface, for example ``http://localhost:8081``.
        ask: Sends requests to that interface; by default over HTTP.
    """
    ask = ask or partial(_ask, address.rstrip("/"))
    try:
        overview = ask("/overview")
        version = str(overview["flink-version"])
        managers = [str(each["id"]) for each in ask("/taskmanagers")["taskmanagers"]]
        configuration = {one["key"]: one["value"] for one in ask("/jobmanager/config")}
        class_path = ask("/jobmanager/environment")["classpath"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "start the cluster, or pass the address of its REST interface: http://HOST:8081"
        return [CheckResult("cluster", "fail", f"{address}: {_reason(error)}", fix)]
    return [
        _version(version, len(managers), int(overview["slots-total"])),
        _jar("JobManager", " ".join(class_path)),
        _patterns("JobManager", configuration),
        *(check for manager in managers for check in _manager_checks(manager, ask)),
        *job_checks(ask, configuration),
    ]


def _version(version: str, managers: int, slots: int) -> CheckResult:
    found = f"Flink {version}, {managers} TaskManagers with {slots} slots"
    try:
        pyflink = metadata.version("apache-flink")
    except metadata.PackageNotFoundError:
        pyflink = ""
    if pyflink.split(".")[:2] != version.split(".")[:2]:
        fix = f"install the version of apache-flink that the cluster has: {version}"
        return CheckResult("cluster", "fail", f"{found}; here PyFlink {pyflink or 'missing'}", fix)
    if managers == 0:
        return CheckResult("cluster", "warn", found, "start a TaskManager; jobs wait until there is one")
    return CheckResult("cluster", "ok", found)


def _jar(where: str, class_path: str) -> CheckResult:
    found = re.search(rf"{PYTHON_JAR}[\w.-]*\.jar", class_path)
    if found is None:
        missing = f"no {PYTHON_JAR}-*.jar in lib: {_ONE_JOB}"
        return CheckResult(f"{where}, class path", "warn", missing, _LIB_FIX)
    return CheckResult(f"{where}, class path", "ok", found[0])


def _patterns(where: str, configuration: Mapping[str, str]) -> CheckResult:
    name = f"{where}, class loading"
    if configuration.get(_RESOLVE_ORDER, "").lower() == "parent-first":
        return CheckResult(name, "ok", f"{_RESOLVE_ORDER}: parent-first")
    given = configuration.get(PARENT_FIRST, "")
    missing = [one for one in SHARED_CLASSES if one not in given.split(";")]
    if missing:
        found = f"{PARENT_FIRST} lacks {', '.join(missing)}: {_ONE_JOB}"
        return CheckResult(name, "warn", found, _PATTERNS_FIX)
    return CheckResult(name, "ok", f"{PARENT_FIRST}: {given}")


def _manager_checks(manager: str, ask: Ask) -> list[CheckResult]:
    where = f"TaskManager {manager}"
    try:
        log = ask(f"/taskmanagers/{manager}/log")
    except (OSError, ValueError) as error:
        return [_unknown(where, _reason(error))]
    class_path = re.search(r"Classpath: (\S+)", log)
    if class_path is None:
        return [_unknown(where, "its log does not start with its class path")]
    lines = re.findall(r"Loading configuration property: (\S+), (.*)", log)
    configuration = {key: value.strip("'\" ") for key, value in lines}
    return [_jar(where, class_path[1]), _patterns(where, configuration)]


def _unknown(where: str, why: str) -> CheckResult:
    return CheckResult(
        where, "warn", f"not known: {why}", "check that it has the same setup as the JobManager"
    )


def _ask(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}{path}", timeout=SECONDS) as answer:
        if path.endswith("/log"):
            return answer.read(LOG_BYTES).decode("utf-8", "replace")
        return json.loads(answer.read())


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
    return f"{type(error).__name__}: {error}"
