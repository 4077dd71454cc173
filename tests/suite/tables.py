"""Tests with a table: ``each_case`` runs a test function once per case, in one test.

    @each_case(("value", "text"), [(1, "1"), (None, "null")])
    def test_value_as_json(value: object, text: str) -> None:
        assert json.dumps(value) == text

It takes the arguments of ``pytest.mark.parametrize``, and can be stacked like it. All cases run, whatever
fails, and the failure names every case that failed. Use it if cases are data. If a case needs its own
fixtures, or shows behaviour that you want to repeat alone, use ``parametrize``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

SHOWN = 20
"""How many failures are shown with their messages."""


class CasesFailed(AssertionError):
    """Some cases of a table failed.

    Args:
        failures: The id of each case that failed, and what it raised.
        cases: How many cases the table has.
    """

    def __init__(self, failures: Sequence[tuple[str, Exception]], cases: int) -> None:
        self.failures = failures
        self.cases = cases
        lines = [f"[{case}] {type(raised).__name__}: {raised}" for case, raised in failures[:SHOWN]]
        other_cases = [f"[{case}]" for case, _ in failures[SHOWN:]]
        more = [f"and {' '.join(other_cases)}"] if other_cases else []
        super().__init__("\n".join([f"{len(failures)} of {cases} cases failed:", *lines, *more]))


def each_case(
    names: str | Sequence[str],
    cases: Iterable[Any],
    ids: Callable[[Any], object] | Iterable[object] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test function with each case.

    Args:
        names: The parameters, as of ``pytest.mark.parametrize``.
        cases: A value for each case, or as many values as there are parameters.
        ids: A function of a value, or a name for each case. Default: the values.

    Raises:
        ValueError: The table is empty, so the test could not fail.
    """
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    single = isinstance(names, str) and len(parameters) == 1
    rows = [_values(case, single) for case in cases]
    if not rows:
        raise ValueError(f"the table of {', '.join(parameters)} has no cases")
    named = _names(rows, ids)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run_all(*arguments: Any, **fixtures: Any) -> None:
            failures: list[tuple[str, Exception]] = []
            count = 0
            for name, row in zip(named, rows, strict=True):
                try:
                    function(*arguments, **fixtures, **dict(zip(parameters, row, strict=True)))
                    count += getattr(function, "cases", 1)
                except CasesFailed as inner:
                    failures += [(f"{name}-{case}", raised) for case, raised in inner.failures]
                    count += inner.cases
                except Exception as raised:  # every failure is reported below
                    failures.append((name, raised))
                    count += 1
            if failures:
                raise CasesFailed(failures, count) from failures[0][1]

        signature = inspect.signature(function)
        remaining_parameters = [
            parameter for name, parameter in signature.parameters.items() if name not in parameters
        ]
        run_all.__signature__ = signature.replace(parameters=remaining_parameters)  # type: ignore[attr-defined]
        run_all.cases = len(rows) * getattr(function, "cases", 1)  # type: ignore[attr-defined]
        return run_all

    return decorate


def _values(case: Any, single: bool) -> tuple[Any, ...]:
    """Return the values of a case; also of a ``pytest.param``."""
    values = getattr(case, "values", None)
    if isinstance(values, tuple) and hasattr(case, "marks"):
        return values
    return (case,) if single else tuple(case)


def _names(rows: Sequence[tuple[Any, ...]], ids: Any) -> list[str]:
    if ids is None or callable(ids):
        shown = ids or _shown
        return ["-".join(str(shown(value)) for value in row) for row in rows]
    return [str(name) for _, name in zip(rows, ids, strict=True)]


def _shown(value: Any) -> str:
    named = getattr(value, "__qualname__", None)
    return named if isinstance(named, str) else repr(value)[:60]
