"""Pages of keys: state, runs and journal of a key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flink_agents.api.errors.console import RejectedAnswerError
from flink_agents.connectors.kafka.requests.signal_keys import text_to_enter
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.trace import rendering
from flink_agents.trace.reading import RunTrace
from flink_agents.ui import queries
from flink_agents.ui.merging import shown_key, storable_text
from flink_agents.ui.pages.view import View, first_value
from flink_agents.ui.rendering import link_to


def keys(view: View, request: Request) -> Response:
    """Return the page of a key, or the form to enter one."""
    entered_text = request.query_params.get("key", "").strip()
    raw = request.query_params.get("raw", "")
    canonical = raw or _canonical_key(view, entered_text)
    traces = queries.traces_of_key(view.index, canonical) if canonical else []
    explanation = _explain_key(traces, canonical) if canonical else []
    return view.render_page(
        request,
        "keys.html",
        given=entered_text or (shown_key(canonical) if canonical else ""),
        canonical=canonical,
        said=explanation,
        rows=_key_runs(view, canonical) if canonical else [],
        recent=[] if canonical else _recent_keys(view),
        has_journal=view.settings.journals is not None,
        signal_key=text_to_enter(canonical) if canonical else "",
        can_signal=view.settings.signals is not None,
        can_ask=view.settings.can_ask,
        answer=view.outside.answer_about(canonical),
        requests=view.outside.requests_of(canonical),
    )


def inspect(view: View, request: Request) -> Response:
    """Ask the job about a key, and redirect to the page that shows its answer."""

    def act(form: Mapping[str, list[str]]) -> str:
        key = first_value(form, "key")
        if not text_to_enter(key):
            raise RejectedAnswerError("this key cannot be sent", found=key[:200])
        view.outside.inspect_key(key)
        return "the job was asked"

    parameters = request.query_params
    back = (
        "/waiting" if parameters.get("back") == "waiting" else link_to("/keys", raw=parameters.get("raw", ""))
    )
    return view.execute_form(request, act, back)


def journal(view: View, request: Request) -> Response:
    """Return the journal of a key or of one run, as a part of another page."""
    key = request.query_params.get("key", "")
    sequence = request.query_params.get("run", "")
    journals: list[dict[str, Any]] = []
    problem = ""
    if view.settings.journals is not None:
        try:
            journals = view.settings.journals(key, int(sequence) if sequence.isdecimal() else None)
        except Exception as error:  # whatever a store that is away leads to
            problem = str(error) or type(error).__name__
    return view.render_page(request, "journal.html", journals=journals, failure=problem)


def _explain_key(traces: Sequence[RunTrace], canonical: str) -> list[str]:
    try:
        return rendering.explain_key(traces, shown_key(canonical))
    except (ValueError, OverflowError, OSError, LookupError, TypeError, AttributeError) as error:
        # The trace may come from anywhere, and hold a wait of another form or a time that no calendar has.
        return [f"The records of this key cannot be told in words: {error}"]


def _key_runs(view: View, key: str) -> list[Any]:
    return view.index.query(
        "SELECT * FROM runs WHERE key = ? ORDER BY sequence DESC LIMIT 50", [storable_text(key)]
    )


def _recent_keys(view: View) -> list[Any]:
    return view.index.query(
        "SELECT agent, key, shown_key, max(ended) AS ended FROM "
        "(SELECT agent, key, shown_key, ended FROM runs ORDER BY ended DESC LIMIT 500) "
        "GROUP BY agent, key ORDER BY ended DESC LIMIT 12"
    )


def _canonical_key(view: View, entered_text: str) -> str:
    """Return the canonical text of an entered key: of its forms, the first with runs, else the string."""
    forms = list(_key_forms(entered_text)) if entered_text else []
    for form in forms:
        if view.index.query("SELECT 1 FROM runs WHERE key = ? LIMIT 1", [storable_text(form)]):
            return form
    return forms[0] if forms else ""


def _key_forms(entered_text: str) -> Iterator[str]:
    for value in (entered_text, *_as_json(entered_text)):
        try:
            yield encode_key(value)
        except Exception:  # a value that cannot be a key
            continue
    yield entered_text


def _as_json(text: str) -> list[Any]:
    try:
        return [_convert_arrays(json.loads(text))]
    except (ValueError, RecursionError):
        return []


def _convert_arrays(value: Any) -> Any:
    return tuple(map(_convert_arrays, value)) if isinstance(value, list) else value
