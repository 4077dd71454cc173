"""Attributes of records: the origin of a run, its waits, the memory that it wrote, and its error."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flink_agents import redaction
from flink_agents.api.common.logs import bound_text
from flink_agents.api.events.approvals import ApprovalOutcome
from flink_agents.api.resources.raised_notes import message_of

WRITTEN = "memory"
"""The attribute of a run's record that shows which memory it wrote."""

_PACKAGE = str(Path(__file__).parents[2])
MOST_ERROR = 500
"""Maximum number of characters of the message of an error."""

_MOST_NAMES = 50


def origin_of(parent: str | None, traceparent: str | None) -> dict[str, str]:
    """Return attributes for the origin of a run.

    Args:
        parent: Id of the input message; None if it has none.
        traceparent: Trace context of the input, which the run continues; None without one.
    """
    origin = {"parent": parent, "traceparent": traceparent}
    return {name: redaction.hide(text) for name, text in origin.items() if text}


def written_of(values: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the memory that a run wrote, by names in which secrets are hidden."""
    return {redaction.hide(name): size for name, size in sorted(values.items())[:_MOST_NAMES]}


def wait_of(wait: Any) -> dict[str, Any]:
    """Return a wait of a suspended run as an attribute: kind, name of the signal, deadline in ms, id."""
    return {
        "kind": wait.kind,
        "name": wait.name,
        "deadline": wait.deadline,
        "id": f"{wait.step}|{wait.task}|{wait.nth}",
    }


def decision_attributes(outcome: ApprovalOutcome) -> dict[str, Any]:
    """Return the person who decided on an approval, the reason, and the names of changed arguments."""
    attributes = {"action": outcome.request.action}
    texts = {"by": outcome.by, "reason": outcome.reason}
    attributes |= {name: bound_text(redaction.hide(text), MOST_ERROR) for name, text in texts.items() if text}
    requested_arguments = outcome.request.arguments
    changed_names = [
        name for name, value in outcome.arguments.items() if requested_arguments.get(name) != value
    ]
    return attributes | (
        {"changed": ", ".join(changed_names)[:MOST_ERROR]} if outcome.changed and changed_names else {}
    )


def call_facts_of_record(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error of a durable call, as its journal record has it, as attributes."""
    name = str(error.get("type")).rpartition(":")[2].rpartition(".")[2]
    return {"error": name, "message": bound_text(redaction.hide(str(error.get("message"))), MOST_ERROR)}


def call_facts(error: BaseException) -> dict[str, Any]:
    """Return an exception as attributes: class, message without secrets, last line of the user's code."""
    attributes = {
        "error": type(error).__name__,
        "message": bound_text(redaction.hide(message_of(error, str)), MOST_ERROR),
    }
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame
        for frame in frames
        if not frame.filename.startswith(_PACKAGE) and "site-packages" not in frame.filename
    ]
    if user_frames:
        attributes["where"] = f"{user_frames[-1].filename}:{user_frames[-1].lineno}"
    return attributes
