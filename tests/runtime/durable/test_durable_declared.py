"""What a durable call is declared with is checked where it is declared, before anything has an effect."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import pytest
from durable_tools import EFFECTS, forget, one_action

from flink_agents import NOT_DONE, DurableCallable
from flink_agents.api.errors import ActionFailedError, AgentConfigurationError
from flink_agents.runtime.execution.calls.arguments import request_text
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()


def rate(text: str, token: str) -> int:
    EFFECTS.append(text)
    return 1


def loose(text: str, **more: Any) -> int:
    EFFECTS.append(text)
    return 1


def pay(order: str, amount: int = 0) -> int:
    EFFECTS.append(order)
    return amount


# -- redact ------------------------------------------------------------------------------------


@pytest.mark.parametrize("redact", ["token", ["token"], ("token",), {"token"}, frozenset({"token"})])
def test_a_text_is_one_name(redact: Any) -> None:
    what = DurableCallable(rate, redact=redact)
    assert what.redact == frozenset({"token"}) and hash(what)
    assert request_text(what, ("a", "secret"), {}) == "text='a', token=..."


@pytest.mark.parametrize(
    ("function", "redact", "fix"),
    [
        (rate, {"tokn"}, "did you mean 'token'?"),
        (rate, "tokn", "did you mean 'token'?"),
        (functools.partial(rate, "a"), "text", "name a parameter"),
        (rate, ["token", "card"], "name a parameter"),
        (rate, 3, "write redact='token'"),
        (rate, {"token": None, 3: None}, "write redact='token'"),
    ],
)
def test_a_name_that_no_parameter_has_is_refused(function: Any, redact: Any, fix: str) -> None:
    with pytest.raises(AgentConfigurationError) as caught:
        DurableCallable(function, redact=redact)
    assert caught.value.fix is not None and fix in caught.value.fix
    assert caught.value.where is not None and "test_durable_declared.py:" in caught.value.where


def test_names_behind_stars_are_taken() -> None:
    what = DurableCallable(loose, redact="token")
    assert request_text(what, ("a",), {"token": "secret"}) == "text='a', token=..."


@pytest.mark.parametrize("setting", ["redact", "client"])
@pytest.mark.parametrize("function", [rate, DurableCallable(rate)])
def test_a_setting_of_callables_alone_is_no_argument(function: Any, setting: str) -> None:
    def act(event: Any, ctx: Any) -> None:
        ctx.durable_execute(function, event.input, "secret", **{setting: "token"})

    with OperatorHarness(one_action(act)) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push("a")
    assert type(caught.value.__cause__) is AgentConfigurationError
    assert f"expected: DurableCallable(rate, {setting}=...)" in str(caught.value)
    assert EFFECTS == []


# -- reconcilers -------------------------------------------------------------------------------


def order_only(order: str) -> Any:
    return NOT_DONE


def both(order: str, amount: int = 0) -> Any:
    return NOT_DONE


def other_names(number: str, total: int = 0) -> Any:
    return NOT_DONE


def by_key(order: str, amount: int, idempotency_key: str) -> Any:
    return NOT_DONE


def three(order: str, amount: int, card: str) -> Any:
    return NOT_DONE


def anything(*args: Any, **kwargs: Any) -> Any:
    return NOT_DONE


def charge(order: str, amount: int, idempotency_key: str) -> int:
    return amount


def fetch(http: Any, path: str) -> str:
    return path


def fetched(path: str) -> Any:
    return NOT_DONE


def fetched_by(path: str, http: Any) -> Any:
    return NOT_DONE


@pytest.mark.parametrize(
    ("function", "reconciler", "client"),
    [
        (charge, order_only, ()),
        (charge, three, ()),
        (charge, lambda: NOT_DONE, ()),
        (functools.partial(charge, amount=1), lambda: NOT_DONE, ()),
        (pay, three, ()),
        (fetch, order_only, ()),
        (fetch, lambda: NOT_DONE, "http"),
        (pay, "one", ()),
    ],
)
def test_a_reconciler_that_takes_no_call_is_refused(function: Any, reconciler: Any, client: Any) -> None:
    with pytest.raises(AgentConfigurationError, match="reconciler") as caught:
        DurableCallable(function, reconciler=reconciler, client=client)
    assert caught.value.where is not None and "test_durable_declared.py:" in caught.value.where
    assert caught.value.expected and caught.value.found and caught.value.fix


@pytest.mark.parametrize(
    ("function", "reconciler", "client"),
    [
        (charge, both, ()),
        (charge, other_names, ()),
        (charge, by_key, ()),
        (charge, anything, ()),
        (functools.partial(charge, "a"), functools.partial(by_key, "a"), ()),
        (loose, anything, ()),
        (loose, order_only, ()),
        (pay, order_only, ()),
        (fetch, fetched, "http"),
        (fetch, fetched_by, "http"),
        (int, len, ()),
    ],
)
def test_one_that_takes_some_is_not(function: Any, reconciler: Any, client: Any) -> None:
    DurableCallable(function, reconciler=reconciler, client=client)


@pytest.mark.parametrize(
    ("function", "reconciler", "args", "kwargs", "refused"),
    [
        (pay, order_only, ("a",), {}, False),
        (pay, order_only, ("a", 1), {}, True),
        (pay, other_names, ("a", 1), {}, False),
        (pay, other_names, ("a",), {"amount": 1}, True),
        (pay, both, ("a",), {"amount": 1}, False),
        (loose, lambda text: NOT_DONE, ("a",), {}, False),
        (loose, lambda text: NOT_DONE, ("a",), {"token": "secret"}, True),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_call_that_the_reconciler_does_not_take_is_refused_before_it_is_made(
    function: Any, reconciler: Any, args: Any, kwargs: Any, refused: bool, beside: bool
) -> None:
    def act(event: Any, ctx: Any) -> None:
        if beside or function is loose:
            ctx.durable_execute(DurableCallable(function, reconciler=reconciler), *args, **kwargs)
        else:
            ctx.durable_execute(function, *args, reconciler=reconciler, **kwargs)

    with OperatorHarness(one_action(act)) as harness:
        if not refused:
            harness.push("a")
            assert EFFECTS == ["a"]
            return
        with pytest.raises(ActionFailedError) as caught:
            harness.push("a")
    assert type(caught.value.__cause__) is AgentConfigurationError
    assert "cannot be called with the arguments of a call" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert EFFECTS == []


# -- other settings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("timeout", "3 s"),
        ("timeout", 0),
        ("timeout", -1.5),
        ("timeout", float("nan")),
        ("timeout", True),
        ("timeout", timedelta(0)),
        ("retry", 3),
        ("retry", "fail"),
        ("name", 3),
        ("name", ""),
    ],
)
def test_a_setting_that_is_none_is_refused(setting: str, value: Any) -> None:
    def act(event: Any, ctx: Any) -> None:
        ctx.durable_execute(rate, event.input, "t", **{setting: value})

    settings: dict[str, Any] = {setting: value}
    with pytest.raises(AgentConfigurationError, match=f"an invalid {setting}") as caught:
        DurableCallable(rate, **settings)
    assert caught.value.fix is not None and f"write {setting}=" in caught.value.fix
    with OperatorHarness(one_action(act)) as harness, pytest.raises(ActionFailedError) as failed:
        harness.push("a")
    assert f"an invalid {setting}" in str(failed.value) and EFFECTS == []


def test_what_is_no_function_is_told_with_the_authors_line() -> None:
    async def act(event: Any, ctx: Any) -> None:
        await ctx.durable_execute_async(rate("a", "t"))

    with OperatorHarness(one_action(act)) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push("a")
    assert "test_durable_declared.py:" in str(caught.value).splitlines()[0]
    assert "pass the function itself" in str(caught.value)
