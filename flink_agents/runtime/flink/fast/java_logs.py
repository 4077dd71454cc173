"""Stops Python log records early that Java's log would drop.

In thread mode, PyFlink passes every record of the root logger to Java, and sets the root logger to ``DEBUG``:
Flink's log configuration then decides. So a library that logs a lot, such as a chat model client with
fifteen records per request, formats each record and calls Java, which drops it at ``INFO``, the usual level.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

_LEVELS = (
    (logging.DEBUG, "isDebugEnabled"),
    (logging.INFO, "isInfoEnabled"),
    (logging.WARNING, "isWarnEnabled"),
)
"""Levels of Python with the SLF4J methods that check them, from the lowest."""


def follow_java() -> None:
    """Set Python's root logger to the level of Java's, if it is still as PyFlink has set it.

    Another level, or another handler besides PyFlink's, is intended and stays. If you change Flink's log
    configuration while a job runs, lower levels appear when the job next starts.
    """
    root, pyflinks = logging.getLogger(), sys.modules.get("pemja.logger")
    if (
        pyflinks is not None
        and root.level == logging.DEBUG
        and root.handlers == [pyflinks.python_log_handler]
    ):
        pemja: Any = importlib.import_module("pemja")
        root.setLevel(level_of(pemja.findClass("org.slf4j.LoggerFactory").getLogger("ROOT")))


def level_of(java: Any) -> int:
    """Return the lowest Python level that a Java logger keeps.

    Args:
        java: A logger of SLF4J.
    """
    return next((level for level, enabled in _LEVELS if getattr(java, enabled)()), logging.ERROR)
