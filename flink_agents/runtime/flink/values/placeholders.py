"""Proxies for outputs that PyFlink would misinterpret: ``None`` and ``()``.

PyFlink passes ``None`` to Flink without pickling it, and Flink's serializers accept no null; and it checks
the first item of each tuple to tell side outputs from main outputs. A proxy becomes its value when it is
pickled.
"""

from __future__ import annotations

from typing import Any


class _Nothing:
    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class _EmptyTuple:
    def __reduce__(self) -> tuple[type[tuple[Any, ...]], tuple[()]]:
        return tuple, ()


_NOTHING = _Nothing()
_EMPTY_TUPLE = _EmptyTuple()


def not_none(value: Any) -> Any:
    """Return ``value``, or a proxy if it is None."""
    return _NOTHING if value is None else value


def plain_output(value: Any) -> Any:
    """Return ``value``, or a proxy if PyFlink's public path would misinterpret it."""
    return _EMPTY_TUPLE if isinstance(value, tuple) and not value else not_none(value)
