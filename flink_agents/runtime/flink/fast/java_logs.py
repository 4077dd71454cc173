"""Passes Python's log records to Java by the names of their loggers, if Java's log keeps them.

In thread mode, PyFlink passes every record of the root logger to Java, and sets the root logger to ``DEBUG``:
Flink's log configuration then decides. So a library that logs a lot, such as a chat model client with
fifteen records per request, formats each record and calls Java, which drops it at ``INFO``, the usual level.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

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
