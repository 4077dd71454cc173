"""Loggers with messages of bounded size, whatever exceptions and values they contain."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

from flink_agents.redaction import hide

MAX_CHARACTERS = 4_000
"""Maximum number of characters of a value or an exception's message in a log."""

MAX_LINE = 1_000
"""Maximum number of characters of a traceback's line in a log."""

MAX_TRACEBACK = 20_000
"""Maximum number of characters of a traceback in a log."""


def bounded_logger(name: str) -> logging.Logger:
    """Return the logger ``name``, which cuts long messages and hides secrets."""
    logger = logging.getLogger(name)
    if not any(isinstance(log_filter, _Bounded) for log_filter in logger.filters):
        logger.addFilter(_Bounded())
        vars(logger)["handle"] = _contain_errors(logger)
    return logger


def _contain_errors(logger: logging.Logger) -> Callable[[logging.LogRecord], None]:
    """Return a replacement of ``logger.handle`` that survives handlers and filters which raise.

    The first such exception goes to standard error.
    """
    handle_record = logger.handle
    reported = False

    def handle(record: logging.LogRecord) -> None:
        nonlocal reported
        try:
            handle_record(record)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # An error of the record itself comes from the code that logs, so tests must see it.
            record.getMessage()
            if not reported:
                reported = True
                shown = str(_Shown(error))
                sys.stderr.write(f"a handler of {logger.name} raised {type(error).__qualname__}: {shown}\n")

    return handle


def bound_text(text: str, most: int = MAX_CHARACTERS) -> str:
    """Return ``text``; if it is longer than ``most`` characters, without its middle."""
    if len(text) <= most:
        return text
    head = most * 3 // 4
    tail = most // 4
    return f"{text[:head]} ... {len(text) - head - tail} characters ... {text[-tail:]}"


class _Bounded(logging.Filter):
    """Cuts the arguments and the traceback of each record, and removes secrets; it drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Cut the arguments and the traceback of ``record``; always return True."""
        # A single argument that is a mapping is stored as it is.
        args = record.args if isinstance(record.args, tuple) else (record.args,)
        record.args = tuple(map(_bound_argument, args)) if record.args else ()
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            _, error, origin = record.exc_info
            # Handlers do not format a traceback again if it has a text.
            record.exc_text = _traceback_text(error, origin)
        return True


def _bound_argument(value: object) -> object:
    is_short = value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64)
    return value if is_short else _Shown(value)


class _Shown(str):
    """The text of a value in a log: cut, and a substitute if the value's own ``__str__`` raises.

    A string, since handlers may write the arguments of records, for example as JSON.
    """

    _value: object

    def __new__(cls, value: object) -> _Shown:
        """Create the text of a value, and keep the value for ``repr``."""
        shown = super().__new__(cls, _safe_text(str, value))
        shown._value = value
        return shown

    def __repr__(self) -> str:
        return _safe_text(repr, self._value)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # Handlers of other processes get the text; the value may have no pickle.
        return str, (str(self),)


def _safe_text(show: Callable[[object], str], value: object) -> str:
    try:
        return bound_text(hide(show(value)))
    except Exception as error:
        return f"<{type(value).__qualname__}: its __str__ raised {type(error).__name__}>"


def _traceback_text(error: BaseException, origin: TracebackType | None) -> str:
    try:
        text = hide("".join(traceback.format_exception(type(error), error, origin)))
    except Exception as raised:
        # Foreign classes run their own code here.
        text = f"{type(error).__qualname__}: its traceback raised {type(raised).__name__}"
    # Line by line first, so that one long message does not hide other errors of the chain.
    lines = [bound_text(line, MAX_LINE) for line in text.splitlines()]
    return bound_text("\n".join(lines), MAX_TRACEBACK)
