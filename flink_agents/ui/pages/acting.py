"""Pages of waits, approvals, dead letters and signals, on which you decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from flink_agents.api.errors import AgentsError
from flink_agents.api.errors.console import RejectedAnswerError
from flink_agents.api.events.approvals import ApprovalRequest, ApprovalResponse, plain, wait_of_request
from flink_agents.api.events.signals import Signal
from flink_agents.connectors.kafka.requests.signal_keys import entered_key
from flink_agents.ui import queries
from flink_agents.ui.merging import shown_key, storable_text
from flink_agents.ui.outside import json_of
from flink_agents.ui.pages.fields import Field, fields_of, kind_of, parse_field
from flink_agents.ui.pages.view import View, first_value
from flink_agents.ui.rendering import as_json, link_to

ARGUMENT = "argument:"

Form = Mapping[str, list[str]]

MOST_SHOWN = 200
"""Maximum number of requests on the page of approvals."""


def waiting(view: View, request: Request) -> Response:
    """Return the page with the waiting keys, and what ends their waits."""
    agent = request.query_params.get("agent", "")
    rows = queries.waiting_keys(view.index, agent)
    pending = view.outside.requests()
    requests_by_key: dict[tuple[str, str], list[ApprovalRequest]] = {}
    for pending_request in (pending.value if pending else None) or ():
        requests_by_key.setdefault((pending_request.agent, key_of_request(pending_request)), []).append(
            pending_request
        )
    return view.render_page(
        request,
        "waiting.html",
        rows=rows,
        agents=queries.agent_names(view.index),
        agent=agent,
        asked=requests_by_key,
        answers=view.outside.answer_about,
        can_ask=view.settings.can_ask,
    )


def key_of_request(approval_request: ApprovalRequest) -> str:
    """Return the canonical text of the key whose run made a request."""
    return wait_of_request(approval_request.id).rsplit("|", 4)[0]


def approvals(view: View, request: Request) -> Response:
    """Return the page with the pending requests for approval, the oldest first."""
    reading = view.outside.requests()
    text = request.query_params.get("q", "").strip()
    matching_requests = [
        pending_request
        for pending_request in (reading.value if reading else None) or ()
        if _matches_text(pending_request, text)
    ]
    return view.render_page(
        request,
        "approvals.html",
        reading_=reading,
        found=matching_requests[:MOST_SHOWN],
        left_out=max(0, len(matching_requests) - MOST_SHOWN),
        q=text,
        sent=view.outside.sent,
        plain=plain,
        key_of=key_of_request,
    )


def _matches_text(approval_request: ApprovalRequest, text: str) -> bool:
    """Return True if key, agent, tool or an argument of a request contains a text, in any case."""
    if not text:
        return True
    values = (
        approval_request.key,
        approval_request.agent,
        approval_request.what,
        *approval_request.arguments.values(),
    )
    return any(text.lower() in str(value).lower() for value in values)


def approval(view: View, request: Request) -> Response:
    """Return the page of one request, with a form to answer it."""
    name = request.query_params.get("id", "")
    approval_request = view.outside.request(name)
    if approval_request is None:
        return view.render_page(request, "missing.html", 404, what="pending request", name=name)
    return _form_of(
        view,
        request,
        approval_request,
        fields_of({key: plain(value) for key, value in approval_request.arguments.items()}),
    )


def _form_of(
    view: View,
    request: Request,
    approval_request: ApprovalRequest,
    fields: Sequence[Field],
    entered: Form | None = None,
) -> Response:
    """Return the page of a request, with its own arguments or with what the visitor entered.

    Args:
        view: Sources and templates.
        request: The HTTP request.
        approval_request: The request for approval.
        fields: The fields of its arguments.
        entered: The submitted form, to show it again with its problems; None for a new form.
    """
    return view.render_page(
        request,
        "approval.html",
        asked=approval_request,
        key=key_of_request(approval_request),
        run=_run_of(view, approval_request),
        fields=fields,
        entered={name: first_value(entered or {}, name) for name in ("more", "reason", "by")},
        more_problem=_problem_of_more(entered) if entered else "",
        can_answer=view.settings.signals is not None,
        sent=view.outside.sent.get(approval_request.id),
        prefix=ARGUMENT,
    )


def _run_of(view: View, approval_request: ApprovalRequest) -> str:
    """Return the id of the run that made a request; empty if the trace lacks it."""
    parts = wait_of_request(approval_request.id).rsplit("|", 4)
    sequence = int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else -1
    rows = view.index.query(
        "SELECT run_id FROM runs WHERE key = ? AND sequence = ? AND agent = ? ORDER BY ended DESC LIMIT 1",
        [storable_text(parts[0]), sequence, storable_text(approval_request.agent)],
    )
    return rows[0]["run_id"] if rows else ""


def answer(view: View, request: Request) -> Response:
    """Send an approval or a denial, and redirect. A form with an invalid field is shown again."""
    form: Form = request.state.form
    if first_value(form, "decision") == "approve":
        fields = list(_entered_fields(form))
        if any(field.problem for field in fields) or _problem_of_more(form):
            approval_request = view.outside.request(first_value(form, "id"))
            if approval_request is not None:
                return _form_of(view, request, approval_request, fields, form)

    def act(form: Form) -> str:
        approved = first_value(form, "decision") == "approve"
        if not approved and first_value(form, "decision") != "deny":
            raise RejectedAnswerError("this form neither approves nor denies", fix="press one of its buttons")
        response = ApprovalResponse(
            id=first_value(form, "id"),
            approved=approved,
            arguments=_changed_arguments(form) if approved else None,
            reason=first_value(form, "reason").strip() or None,
            by=first_value(form, "by").strip() or None,
        )
        answered_request = view.outside.send_answer(
            response, new_arguments=bool(first_value(form, "more").strip())
        )
        view.outside.renew_requests()
        key = shown_key(key_of_request(answered_request))
        return f"sent: {'approved' if approved else 'denied'} {answered_request.what} for the key {key}"

    return view.execute_form(request, act, "/approvals")


def _entered_fields(form: Form) -> Iterator[Field]:
    """Yield the fields of a submitted form, each with the problem of its text, if any."""
    for key in form:
        if key.startswith(ARGUMENT):
            name = key.removeprefix(ARGUMENT)
            previous_value = json_of(first_value(form, f"before:{name}") or "null", f"the argument {name}")
            problem = ""
            try:
                parse_field(name, first_value(form, key), previous_value)
            except RejectedAnswerError as error:
                problem = error.message
            yield Field(
                name, kind_of(previous_value), first_value(form, key), as_json(previous_value), problem
            )


def _changed_arguments(form: Form) -> dict[str, Any] | None:
    """Return all arguments of a form that differ from those of the request, by name; None if none does."""
    changed: dict[str, Any] = {}
    for field in _entered_fields(form):
        previous_value = json_of(field.previous_value, field.name)
        value = parse_field(field.name, field.text, previous_value)
        if value != previous_value:
            changed[field.name] = value
    return changed | _further_arguments(form) or None


def _further_arguments(form: Form) -> dict[str, Any]:
    """Return the arguments that the visitor added, which the request does not have."""
    more = first_value(form, "more").strip()
    added = json_of(more, "the field of further arguments") if more else {}
    if not isinstance(added, dict):
        raise RejectedAnswerError("further arguments are a JSON object", found=more[:100])
    return added


def _problem_of_more(form: Form) -> str:
    try:
        _further_arguments(form)
    except RejectedAnswerError as error:
        return error.message
    return ""


def dead_letters(view: View, request: Request) -> Response:
    """Return the page with the dead letters, and a form to send them back."""
    topics = view.outside.letters()
    unknown = {
        name: any(letter.origin is None for letter in reading.value or ()) for name, reading in topics.items()
    }
    return view.render_page(request, "dead_letters.html", topics=topics, unknown=unknown)


def redrive(view: View, request: Request) -> Response:
    """Send the chosen dead letters back, and redirect to their page."""

    def act(form: Form) -> str:
        to = first_value(form, "to").strip() or None
        topic, places = first_value(form, "topic"), form.get("place", [])
        if first_value(form, "all"):
            reading = view.outside.letters().get(topic)
            places = [letter.place for letter in (reading.value if reading else None) or ()]
        done = view.outside.redrive_letters(topic, places, to)
        return "sent back: " + ", ".join(f"{number} into {topic}" for topic, number in done.items())

    return view.execute_form(request, act, "/dead-letters")


SIGNAL_FIELDS = ("key", "name", "wait", "value", "id")


def signals(view: View, request: Request) -> Response:
    """Return the page with the form that sends a signal."""
    parameters = request.query_params
    return _signal_form(view, request, {name: parameters.get(name, "") for name in SIGNAL_FIELDS})


def _signal_form(view: View, request: Request, field_texts: Mapping[str, str]) -> Response:
    return view.render_page(request, "signals.html", topic=view.settings.signals, given=field_texts)


def send(view: View, request: Request) -> Response:
    """Send the signal of a submitted form, and redirect; show the form again if that fails."""
    form: Form = request.state.form

    def act(form: Form) -> str:
        name, key, wait = (first_value(form, field).strip() for field in ("name", "key", "wait"))
        if not name or not (key or wait):
            raise RejectedAnswerError("a signal needs a name, and a key or the id of a wait")
        value = json_of(first_value(form, "value").strip() or "null", "the value")
        signal = Signal(
            name,
            value,
            None if wait else entered_key(key),
            first_value(form, "id").strip() or None,
            wait or None,
        )
        view.outside.send_signal(signal)
        return f"sent the signal {name} to {view.settings.signals}"

    try:
        view.show_message(request, "good", act(form))
    except AgentsError as error:
        # With what was entered, so that it can be corrected.
        view.show_message(request, "bad", str(error))
        return _signal_form(view, request, {name: first_value(form, name) for name in SIGNAL_FIELDS})
    back = {name: first_value(form, name) for name in ("key", "name", "wait")}
    return RedirectResponse(link_to("/signals", **back), 303)
