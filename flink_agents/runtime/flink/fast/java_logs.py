"""Keeps records of Python's logging from Java that Java's log would drop.

In thread mode, PyFlink hands every record of the root logger to Java, and sets the root logger to ``DEBUG``:
Flink's log configuration is to decide. So a library that logs much, such as the clients of chat models with
fifteen records a request, formats each of them and calls Java, which drops it at ``INFO``, its usual level.
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
"""Levels of Python, and what a logger of Java says of each, from the lowest."""


def follow_java() -> None:
    """Set Python's root logger to the level of Java's, if it is as PyFlink has left it.

    Where it has another level, or another handler beside PyFlink's, somebody wants it so. Who changes the log
    configuration of Flink while a job runs, sees records of lower levels from the job's next start on.
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
    """The lowest level of Python that a logger of Java keeps.

    Args:
        java: A logger of SLF4J.
    """
    return next((level for level, enabled in _LEVELS if getattr(java, enabled)()), logging.ERROR)
