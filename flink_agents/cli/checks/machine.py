"""Checks of ``flink-agents doctor``: the requirements of a job on this machine, with fixes.

Each check is a function without arguments that returns a :class:`CheckResult`. None of them
starts Flink or uses the network.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Literal

from packaging.requirements import Requirement

from flink_agents.api.common.installation import DISTRIBUTION, install_command
from flink_agents.api.errors import AgentsError, KafkaConnectorError
from flink_agents.api.settings.options import Configuration, all_options
from flink_agents.connectors.kafka.connector_jar import VERSION as CONNECTOR, present_jar
from flink_agents.runtime.flink.launch.jvm import java_fix, search_java
from flink_agents.runtime.flink.launch.packages import conflict_fix, conflicting_packages

Status = Literal["ok", "warn", "fail"]

REST_PORT = 8081
FREE_BYTES = 1 << 30

_PYTHONS = ((3, 11), (3, 12))
_PYFLINK = "2.3"
_RECOMMENDED_JAVA = 17
# apache-beam 2.61, the newest for PyFlink 2.3, requires 3.20.3 to 5.x without some of 4.x.
_PROTOBUF_LOWEST = (3, 20)
_PROTOBUF_GOOD = (4, 25)
_PROTOBUF_LIMIT = (6, 0)
_FOR_DEVELOPMENT = {"dev", "docs", "release", "examples"}
_SETUPTOOLS_LIMIT = 82  # the first version without pkg_resources


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: Name of the check.
        status: ``fail`` means that jobs cannot run, ``warn`` that some cannot.
        found: What the check found, as text.
        fix: A command or action that helps; empty if the check passed.
        figures: The numbers in ``found``, by names that end with their units.
    """

    name: str
    status: Status
    found: str
    fix: str = ""
    figures: Mapping[str, int] = field(default_factory=dict[str, int])


def run_checks(checks: Iterable[Callable[[], CheckResult]] | None = None) -> list[CheckResult]:
    """Run checks in order, by default all; a check that raises counts as failed."""
    return [_run_check(check) for check in (CHECKS if checks is None else checks)]


def _run_check(check: Callable[[], CheckResult]) -> CheckResult:
    try:
        return check()
    except Exception as error:
        # The doctor runs when things are broken: one broken check must not hide the others.
        name = check.__name__.removeprefix("check_").replace("_", " ")
        return CheckResult(
            name, "fail", f"{type(error).__name__}: {error}", install_command(options="--upgrade")
        )


def check_python() -> CheckResult:
    """Check that PyFlink 2.3 has wheels for this Python."""
    lowest, highest = _PYTHONS
    summary = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]} ({sys.executable})"
    if lowest <= tuple(sys.version_info[:2]) <= highest:
        return CheckResult("Python", "ok", summary)
    return CheckResult("Python", "fail", summary, "create the environment again: python3.12 -m venv .venv")


def check_java() -> CheckResult:
    """Check that Flink can use an installed Java, and report it."""
    search = search_java()
    skipped = "; ".join(f"{item.source} skipped: {item.reason}" for item in search.rejected)
    if search.runtime is None:
        return CheckResult("Java", "fail", skipped or "none", java_fix())
    runtime = search.runtime
    summary = f"{runtime.version} from {runtime.source} ({runtime.home})"
    if skipped:
        return CheckResult("Java", "warn", f"{summary}; {skipped}", "unset JAVA_HOME, or correct it")
    if runtime.version < _RECOMMENDED_JAVA:
        return CheckResult("Java", "warn", summary, java_fix())
    return CheckResult("Java", "ok", summary)


def check_pyflink() -> CheckResult:
    """Check that PyFlink is 2.3 and that its jars have the same release."""
    fix = f'pip install "apache-flink>={_PYFLINK},<2.4"'
    python = _installed_version("apache-flink")
    jars = _installed_version("apache-flink-libraries")
    summary = f"apache-flink {python or 'missing'}, apache-flink-libraries {jars or 'missing'}"
    if python is None or _version_numbers(python) != _version_numbers(_PYFLINK):
        return CheckResult("PyFlink", "fail", summary, fix)
    if jars != python:
        return CheckResult("PyFlink", "fail", summary, f"pip install apache-flink-libraries=={python}")
    if foreign := os.environ.get("FLINK_HOME"):
        if not os.path.isdir(os.path.join(foreign, "lib")):
            return CheckResult("PyFlink", "fail", f"FLINK_HOME={foreign} has no Flink", "unset FLINK_HOME")
        return CheckResult("PyFlink", "warn", f"{summary}; FLINK_HOME={foreign} is used", "unset FLINK_HOME")
    return CheckResult("PyFlink", "ok", summary)


def check_options() -> CheckResult:
    """Check the options in the file of ``FLINK_AGENTS_CONFIG``, and in variables of the environment."""
    try:
        config = Configuration.load()
        for option in all_options().values():
            config.get(option)
    except AgentsError as error:
        problem = f"{error.message}: {error.found}" if error.found else error.message
        return CheckResult("options", "fail", problem, error.fix or "")
    return CheckResult("options", "ok", "each is known, with a valid value")


def check_pemja() -> CheckResult:
    """Check the requirements of thread mode: pemja built for this Python, and a shared libpython."""
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    if (version := _installed_version("pemja")) is None:
        return CheckResult("pemja", "fail", "missing", "pip install --force-reinstall pemja")
    if not any(tag in name for name in _pemja_files()):
        summary = f"{version}, not built for {tag}"
        return CheckResult("pemja", "fail", summary, "pip install --force-reinstall --no-cache-dir pemja")
    library = import_module("find_libpython").find_libpython()
    if library is None:
        fix = "use a Python with a shared library (Debian: apt-get install libpython3-dev)"
        return CheckResult("pemja", "fail", f"{version}, but this Python has no libpython", fix)
    return CheckResult("pemja", "ok", f"{version}, {library}")


def _pemja_files() -> list[str]:
    spec = find_spec("pemja")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return [name for place in places for name in os.listdir(place) if name.startswith("pemja_core")]


def check_protobuf() -> CheckResult:
    """Check that PyFlink's and Beam's generated code accepts the version of protobuf."""
    fix = 'pip install "protobuf>=4.25,<6"'
    version = _installed_version("protobuf")
    if version is None or not _PROTOBUF_LOWEST <= _version_numbers(version) < _PROTOBUF_LIMIT:
        return CheckResult("protobuf", "fail", version or "missing", fix)
    if _version_numbers(version) < _PROTOBUF_GOOD:
        return CheckResult("protobuf", "warn", f"{version}, which Beam may reject", fix)
    return CheckResult("protobuf", "ok", version)


def check_setuptools() -> CheckResult:
    """Check that setuptools still has pkg_resources, which Beam imports."""
    fix = f'pip install "setuptools<{_SETUPTOOLS_LIMIT}"'
    version = _installed_version("setuptools")
    if version is None or find_spec("pkg_resources") is None:
        problem = f"{version or 'missing'}, without pkg_resources"
        return CheckResult("setuptools", "fail", problem, fix)
    return CheckResult("setuptools", "ok", version)


def check_conflicts() -> CheckResult:
    """Check that no other distribution shares the import name ``flink_agents``."""
    if packages := conflicting_packages():
        return CheckResult("import name", "fail", f"also installed: {', '.join(packages)}", conflict_fix())
    return CheckResult("import name", "ok", f"flink_agents is {DISTRIBUTION} alone")


def check_requirements() -> CheckResult:
    """Check that installed packages, also those of extras, have versions that this package works with."""
    name = "requirements"
    try:
        requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        return CheckResult(name, "ok", "not checked: this package is not installed")
    extras = {
        extra: [
            requirement
            for requirement in requirements
            if requirement.marker and requirement.marker.evaluate({"extra": extra})
        ]
        for extra in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ()
    }
    always = [
        requirement
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    required = _version_mismatches(always)
    if required:
        return CheckResult(name, "fail", "; ".join(required), install_command())
    for extra, optional in extras.items():
        if extra not in _FOR_DEVELOPMENT and (mismatches := _version_mismatches(optional)):
            return CheckResult(
                name, "warn", "; ".join(mismatches), f"{install_command(extra)}, if jobs use it"
            )
    return CheckResult(name, "ok", "installed packages have suitable versions")


def _version_mismatches(requirements: Iterable[Requirement]) -> list[str]:
    """Describe each installed package whose version does not meet its requirement."""
    installed = [
        (requirement, _installed_version(requirement.name))
        for requirement in requirements
        if requirement.name != DISTRIBUTION
    ]
    return [
        f"{requirement.name} {version} is installed, {requirement.specifier} is needed"
        for requirement, version in installed
        if version is not None and not requirement.specifier.contains(version, prereleases=True)
    ]


def check_loopback() -> CheckResult:
    """Check that a process can listen on a loopback port, as the driver and its JVM do."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    except OSError as error:
        fix = "allow this user to listen on 127.0.0.1 (sandbox or firewall rules)"
        return CheckResult("loopback ports", "fail", str(error), fix)
    return CheckResult("loopback ports", "ok", f"could bind 127.0.0.1:{port}")


def check_rest_port() -> CheckResult:
    """Check that Flink's default REST port, 8081, is free. Only a local web UI or cluster needs it."""
    name = "REST port"
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", REST_PORT))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return CheckResult(name, "warn", f"{REST_PORT}: {error}", "set rest.port to another port")
        fix = "stop what listens there, or set rest.port to another port"
        return CheckResult(name, "warn", f"{REST_PORT} is in use", fix)
    return CheckResult(name, "ok", f"{REST_PORT} is free")


def check_temporary_directory() -> CheckResult:
    """Check that the temporary directory is writable, and has 1 GB free."""
    name = "temporary files"
    fix = "set TMPDIR to a writable directory with 1 GB free"
    try:
        with tempfile.TemporaryFile() as probe:
            probe.write(b"\0")
    except OSError as error:
        return CheckResult(name, "fail", str(error), fix)
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    summary = f"{place}, {free / FREE_BYTES:.1f} GB free"
    figures = {"free_bytes": free}
    if free < FREE_BYTES:
        return CheckResult(name, "warn", summary, fix, figures)
    return CheckResult(name, "ok", summary, figures=figures)


def check_kafka_connector() -> CheckResult:
    """Check that Flink's Kafka connector is installed or can be downloaded."""
    name = "Kafka connector"
    try:
        jar = present_jar()
    except KafkaConnectorError as error:
        return CheckResult(name, "warn", f"{error.message}: {error.found}", error.fix or "")
    if jar is not None:
        return CheckResult(name, "ok", str(jar))
    if find_spec("jgo") is None:
        fix = f"{install_command('kafka')}, if jobs use Kafka"
        return CheckResult(name, "ok", f"{CONNECTOR} is missing", fix)
    return CheckResult(name, "ok", f"{CONNECTOR} will be downloaded when a job needs it")


CHECKS: tuple[Callable[[], CheckResult], ...] = (
    check_python,
    check_java,
    check_pyflink,
    check_pemja,
    check_protobuf,
    check_setuptools,
    check_conflicts,
    check_requirements,
    check_loopback,
    check_rest_port,
    check_temporary_directory,
    check_kafka_connector,
    check_options,
)
"""All checks, in the order in which a reader would fix them."""


def render_table(results: list[CheckResult]) -> str:
    """Return the results as a table, with a fix below each check that is not ok."""
    width = max((len(result.name) for result in results), default=0)
    lines: list[str] = []
    for result in results:
        lines.append(f"{result.status:<4}  {result.name:<{width}}  {result.found}")
        if result.fix:
            lines.append(f"{'':4}  {'':{width}}  fix: {result.fix}")
    failed = sum(result.status == "fail" for result in results)
    lines.append(f"{failed} of {len(results)} checks failed" if failed else "all requirements are met")
    return "\n".join(lines)


def render_json(results: list[CheckResult]) -> str:
    """Return the results as a JSON array of objects with name, status, found, fix, and figures if any."""
    checks = [
        {key: value for key, value in asdict(result).items() if key != "figures"} | dict(result.figures)
        for result in results
    ]
    return json.dumps(checks, indent=2)


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _version_numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2])
