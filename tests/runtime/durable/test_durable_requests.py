"""The text of a request, which records keep for people."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents import DurableCallable
from flink_agents.runtime.execution.calls.arguments import REQUEST_CHARACTERS, request_text


def charge(order: str, total: int, *extras: Any, card: str = "", **others: Any) -> None: ...


def pay(*parts: Any) -> None: ...


class Unshowable:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("function", "redact", "args", "kwargs", "expected"),
    [
        (charge, [], ("a", 1), {}, "order='a', total=1"),
        (charge, ["card"], ("a",), {"total": 1, "card": "4000"}, "order='a', total=1, card=..."),
        (charge, ["order"], ("a", 1), {"other": 2}, "order=..., total=1, other=2"),
        (charge, [], ("a", 1, 2), {}, "0='a', 1=1, 2=2"),
        # Nobody can tell which of them is meant.
        (charge, ["order"], ("a", 1, 2), {}, "0=..., 1=..., 2=..."),
        (pay, ["parts"], (1, 2), {}, "0=..., 1=..."),
        (pay, [], (Unshowable(),), {}, "0=<Unshowable: repr raised ValueError>"),
    ],
)
def test_request(
    function: Any, redact: list[str], args: tuple[Any, ...], kwargs: dict[str, Any], expected: str
) -> None:
    what = DurableCallable(function, redact=frozenset(redact))
    assert request_text(what, args, kwargs) == expected


def test_request_is_bounded() -> None:
    assert len(request_text(DurableCallable(charge), ("x" * 10_000, 1), {})) == REQUEST_CHARACTERS
