"""Pages of waits, approvals, dead letters and signals, on which you decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flink_agents.api.errors.console import RejectedAnswerError
from flink_agents.api.events.approvals import ApprovalRequest, ApprovalResponse, plain, wait_of_request
from flink_agents.api.events.signals import Signal
from flink_agents.ui import queries
from flink_agents.ui.outside import json_of
from flink_agents.ui.pages.view import View, first
from flink_agents.ui.rendering import link

ARGUMENT = "argument:"

Form = Mapping[str, list[str]]

MOST_SHOWN = 200
"""Maximum number of requests on the page of approvals."""


def waiting(view: View, request: Request) -> Response:
    """List the waiting keys, and the events or times that end their waits."""
    agent = request.query_params.get("agent", "")
    rows = queries.waiting(view.index, agent)
    pending = view.outside.requests()
    asked: dict[tuple[str, str], list[ApprovalRequest]] = {}
    for one in (pending.value if pending else None) or ():
        asked.setdefault((one.agent, key_of_request(one)), []).append(one)
    return view.page(
        request,
        "waiting.html",
        rows=rows,
        agents=queries.agents(view.index),
        agent=agent,
        asked=asked,
        answers=view.outside.answer_about,
        can_ask=view.settings.can_ask,
    )


def key_of_request(asked: ApprovalRequest) -> str:
    """Return the canonical text of the key whose run requests the approval."""
    return wait_of_request(asked.id).rsplit("|", 4)[0]


def approvals(view: View, request: Request) -> Response:
    """List the pending requests for approvals, the oldest first."""
    reading, text = view.outside.requests(), request.query_params.get("q", "").strip()
    found = [one for one in (reading.value if reading else None) or () if _matches(one, text)]
    return view.page(
        request,
        "approvals.html",
        reading_=reading,
        found=found[:MOST_SHOWN],
        left_out=max(0, len(found) - MOST_SHOWN),
        q=text,
        sent=view.outside.sent,
        plain=plain,
        key_of=key_of_request,
    )


def _matches(asked: ApprovalRequest, text: str) -> bool:
    """True if the key, the agent, the tool or an argument of a request contains a text."""
    if not text:
        return True
    values = (asked.key, asked.agent, asked.what, *asked.arguments.values())
    return any(text.lower() in str(value).lower() for value in values)


def approval(view: View, request: Request) -> Response:
    """Show one request with a form to answer it."""
    name = request.query_params.get("id", "")
    found = view.outside.request(name)
    if found is None:
        return view.page(request, "missing.html", 404, what="pending request", name=name)
    return view.page(
        request,
        "approval.html",
        asked=found,
        key=key_of_request(found),
        arguments={name: plain(value) for name, value in found.arguments.items()},
        can_answer=view.settings.signals is not None,
        sent=view.outside.sent.get(found.id),
        prefix=ARGUMENT,
    )


def answer(view: View, request: Request) -> Response:
    """Send an approval or a denial."""

    def act(form: Form) -> str:
        approved = first(form, "decision") == "approve"
        if not approved and first(form, "decision") != "deny":
            raise RejectedAnswerError("this form neither approves nor denies", fix="press one of its buttons")
        response = ApprovalResponse(
            id=first(form, "id"),
            approved=approved,
            arguments=_changed(form) if approved else None,
            reason=first(form, "reason").strip() or None,
            by=first(form, "by").strip() or None,
        )
        asked = view.outside.answer(response, new_arguments=bool(first(form, "more").strip()))
        view.outside.renew_requests()
        return f"sent: {'approved' if approved else 'denied'} {asked.what} for the key {asked.key!r}"

    return view.do(request, act, "/approvals")


def _changed(form: Form) -> dict[str, Any] | None:
    """Return the changed arguments; None if they are unchanged."""
    changed: dict[str, Any] = {}
    for field, values in form.items():
        if field.startswith(ARGUMENT):
            name = field.removeprefix(ARGUMENT)
            before = first(form, f"before:{name}")
            now = values[0].replace("\r\n", "\n").strip()
            if json_of(now, f"the argument {name}") != json_of(before, f"the argument {name}"):
                changed[name] = json_of(now, f"the argument {name}")
    more = first(form, "more").strip()
    if more:
        added = json_of(more, "the field of further arguments")
        if not isinstance(added, dict):
            raise RejectedAnswerError("further arguments are a JSON object", found=more[:100])
        changed |= added
    return changed or None


def dead_letters(view: View, request: Request) -> Response:
    """List dead letters, with a form to send them back."""
    topics = view.outside.letters()
    unknown = {
        name: any(one.origin is None for one in reading.value or ()) for name, reading in topics.items()
    }
    return view.page(request, "dead_letters.html", topics=topics, unknown=unknown)


def redrive(view: View, request: Request) -> Response:
    """Send dead letters back."""

    def act(form: Form) -> str:
        to = first(form, "to").strip() or None
        topic, places = first(form, "topic"), form.get("place", [])
        if first(form, "all"):
            reading = view.outside.letters().get(topic)
            places = [one.place for one in (reading.value if reading else None) or ()]
        done = view.outside.redrive(topic, places, to)
        return "sent back: " + ", ".join(f"{number} into {topic}" for topic, number in done.items())

    return view.do(request, act, "/dead-letters")


def signals(view: View, request: Request) -> Response:
    """Show the form that sends a signal."""
    given = request.query_params
    names = ("key", "name", "wait", "value")
    return view.page(
        request,
        "signals.html",
        topic=view.settings.signals,
        given={name: given.get(name, "") for name in names},
    )


def send(view: View, request: Request) -> Response:
    """Send the signal of a submitted form, and redirect to the form."""
    form: Form = request.state.form

    def act(form: Form) -> str:
        name, key, wait = (first(form, one).strip() for one in ("name", "key", "wait"))
        if not name or not (key or wait):
            raise RejectedAnswerError("a signal needs a name, and a key or the id of a wait")
        value = json_of(first(form, "value").strip() or "null", "the value")
        signal = Signal(
            name, value, None if wait else _key(key), first(form, "id").strip() or None, wait or None
        )
        view.outside.signal(signal)
        return f"sent the signal {name} to {view.settings.signals}"

    back = {name: first(form, name) for name in ("key", "name", "wait")}
    return view.do(request, act, link("/signals", **back))


def _key(text: str) -> Any:
    """Parse the key in a form: JSON, otherwise the text itself."""
    try:
        return json_of(text, "the key")
    except RejectedAnswerError:
        return text
