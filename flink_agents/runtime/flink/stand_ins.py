"""Stand-ins for values that PyFlink takes for something else than an output: ``None`` and ``()``.

PyFlink hands ``None`` to Flink without pickling it, whose serializers take no null; and it looks at the first
item of each tuple to tell side outputs from main ones. A stand-in becomes its value when it is pickled.
"""

from __future__ import annotations

from typing import Any


class _Nothing:
    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class _EmptyTuple:
    def __reduce__(self) -> tuple[type[tuple[Any, ...]], tuple[()]]:
        return tuple, ()


_NOTHING, _EMPTY_TUPLE = _Nothing(), _EmptyTuple()


def not_none(value: Any) -> Any:
    """``value``, or what stands for it if it is None."""
    return _NOTHING if value is None else value


def plain_output(value: Any) -> Any:
    """``value``, or what stands for it on PyFlink's public way."""
    return _EMPTY_TUPLE if isinstance(value, tuple) and not value else not_none(value)
