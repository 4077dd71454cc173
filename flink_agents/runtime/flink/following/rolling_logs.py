"""Lets the log of a local job roll: Flink's configuration for such jobs writes one file without a limit.

A copy of the log configuration that is in use goes beside the log. In it, the appender of Flink's log file
rolls, and Log4j does not watch the copy; all other lines are yours, or Flink's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from flink_agents.api.settings.options import AgentOptions, Configuration

_LOG_FILE = r"^\s*appender\.(?P<name>\w+)\.fileName\s*[=:]\s*\$\{sys:log\.file\}\s*$"
_ROLLING = """
appender.{name}.type = RollingFile
appender.{name}.filePattern = ${{sys:log.file}}.%i
appender.{name}.policies.type = Policies
appender.{name}.policies.size.type = SizeBasedTriggeringPolicy
appender.{name}.policies.size.size = {size}MB
appender.{name}.strategy.type = DefaultRolloverStrategy
appender.{name}.strategy.fileIndex = min
appender.{name}.strategy.max = {older}
"""
"""The newest of the older files has the suffix ``.1``."""

_UNWATCHED = """
monitorInterval = 0
"""
"""Each local job leaves a log context in the JVM, which would watch the copy as long as the JVM runs. After
the copy is removed with an old log, each of them would write an error to stderr every 30 seconds."""

_METRICS = "org.apache.flink.metrics.MetricGroup"
_KNOWN = rf"""
logger.repeatedgauge.name = {_METRICS}
logger.repeatedgauge.filter.known.type = RegexFilter
logger.repeatedgauge.filter.known.regex = Name collision: .*'pendingCommittables'.*
logger.repeatedgauge.filter.known.onMatch = DENY
logger.repeatedgauge.filter.known.onMismatch = NEUTRAL
"""
"""At each checkpoint, Flink's committer of a sink registers its gauge again, with a warning."""

_originals: dict[str, str] = {}
"""The configurations from which copies were made: each job of a process has its own copy."""


def rocksdb_settings(config: Configuration) -> dict[str, str]:
    """Return Flink's options for RocksDB's logs, which Flink writes beside its own."""
    return {
        "state.backend.rocksdb.log.max-file-size": f"{config.get(AgentOptions.LOG_SIZE_MB)}mb",
        "state.backend.rocksdb.log.file-num": str(config.get(AgentOptions.LOG_FILES)),
    }


def configuration_beside(log: Path, config: Configuration) -> Callable[[str], str | None]:
    """Return a function that writes the configuration of a job's log.

    Its argument is the location of the one in use; it returns the location of the copy, or None if none is
    needed, or can be made.

    Args:
        log: The log.
        config: Options of the job.
    """
    size = config.get(AgentOptions.LOG_SIZE_MB)
    files = config.get(AgentOptions.LOG_FILES)
    return partial(_copy_appender, log.with_name(f"{log.name}.properties"), size, files)


def _copy_appender(copy: Path, size: int, files: int, location: str) -> str | None:
    original = _originals.get(location, location)
    try:
        text = _log_path(original).read_text("utf-8")
        rolling = rolling_text(text, size, files)
        if rolling is None:
            return None
        copy.write_text(rolling, "utf-8")
    except (OSError, ValueError):
        return None
    _originals[copy.as_uri()] = original
    return copy.as_uri()


def _log_path(location: str) -> Path:
    """Return the file of a location, which is a path or a URI."""
    parts = urlsplit(location)
    return Path(url2pathname(parts.path) if parts.scheme == "file" else location)


def rolling_text(text: str, size: int, files: int) -> str | None:
    """Return a log configuration in which the appender of Flink's log file rolls, without a known warning.

    Log4j does not watch its file for changes.

    Args:
        text: A configuration in Java's form of properties.
        size: The MiB at which a new file starts.
        files: The number of files.

    Returns:
        None if no appender writes that file, or if it rolls already.
    """
    for match in re.finditer(_LOG_FILE, text, re.MULTILINE):
        name = match["name"]
        changed, replacements = re.subn(rf"(?im)^\s*appender\.{name}\.type\s*[=:]\s*file\s*$", "", text)
        if replacements:
            filter_text = "" if _METRICS in text else _KNOWN
            return changed + _ROLLING.format(name=name, size=size, older=files - 1) + _UNWATCHED + filter_text
    return None
