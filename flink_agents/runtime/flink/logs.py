"""The log of a job: that of a local job rolls, and Java gets Python's records by the names of loggers.

Flink's configuration for local jobs writes one file without a limit. So a copy of the log configuration that
is in use goes beside the log. In it, the appender of Flink's log file rolls, and Log4j does not watch the
copy; all other lines are yours, or Flink's.

In thread mode, PyFlink passes every record of the root logger to Java, and sets the root logger to ``DEBUG``:
Flink's log configuration then decides. So a library that logs a lot, such as a chat model client with
fifteen records per request, formats each record and calls Java, which drops it at ``INFO``, the usual level.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
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
    """Return Flink's options that limit RocksDB's logs, which Flink writes beside its own."""
    return {
        "state.backend.rocksdb.log.max-file-size": f"{config.get(AgentOptions.LOG_SIZE_MB)}mb",
        "state.backend.rocksdb.log.file-num": str(config.get(AgentOptions.LOG_FILES)),
    }


def configuration_beside(log: Path, config: Configuration) -> Callable[[str], str | None]:
    """Return a function that writes a Log4j configuration beside a job's log, by which the log rolls.

    The function gets the location of the configuration in use, and returns that of its changed copy. It
    returns None if no copy is needed, or can be written.

    Args:
        log: The file of the log.
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


_LEVELS = (
    (logging.DEBUG, "isDebugEnabled"),
    (logging.INFO, "isInfoEnabled"),
    (logging.WARNING, "isWarnEnabled"),
)
"""Levels of Python with the SLF4J methods that check them, from the lowest."""


def follow_java() -> None:
    """Name records by their loggers, and set the root logger to the level of Java's, if it has PyFlink's.

    Another level, or another handler besides PyFlink's, is intended and stays. If you change Flink's log
    configuration while a job runs, lower levels appear when the job next starts.
    """
    root = logging.getLogger()
    pyflinks = sys.modules.get("pemja.logger")
    if pyflinks is None:
        return
    pyflinks.python_log_handler.emit = _emit_by_name(pyflinks)
    if root.level == logging.DEBUG and root.handlers == [pyflinks.python_log_handler]:
        pemja: Any = importlib.import_module("pemja")
        root.setLevel(level_of(pemja.findClass("org.slf4j.LoggerFactory").getLogger("ROOT")))


def _emit_by_name(pyflinks: Any) -> Callable[[logging.LogRecord], None]:
    """Return a function that passes records on with their texts alone.

    PyFlink names each record by its file and line, so that no configuration of Java's log applies to a
    logger, and adds the traceback a second time, with the secrets that the text is without.
    """
    handler = pyflinks.python_log_handler

    def emit(record: logging.LogRecord) -> None:
        severity = pyflinks._map_log_level(record.levelno)
        handler._logger_writer.log(record.name, severity, handler.format(record), None)

    return emit


def level_of(java: Any) -> int:
    """Return the lowest Python level that a Java logger keeps.

    Args:
        java: A logger of SLF4J.
    """
    return next((level for level, enabled in _LEVELS if getattr(java, enabled)()), logging.ERROR)
