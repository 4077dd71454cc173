"""A proxy for the output ``None``.

PyFlink passes ``None`` to Flink without pickling it, and Flink's serializers accept no null. The proxy
becomes ``None`` when it is pickled.
"""

from __future__ import annotations

from typing import Any


class _Nothing:
    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


_NOTHING = _Nothing()


def not_none(value: Any) -> Any:
    """Return ``value``, or a proxy if it is None."""
    return _NOTHING if value is None else value
