"""Shared parts of all pages: data sources, layout, and the message after a form was submitted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from flink_agents.api.errors import AgentsError
from flink_agents.runtime.flink.resume.local_jobs import LocalJobState
from flink_agents.ui.index import TraceIndex
from flink_agents.ui.outside import Outside
from flink_agents.ui.queries import OPEN
from flink_agents.ui.rendering import create_environment, link_to
from flink_agents.ui.settings import CHOSEN_JOB, ConsoleSettings

NAVIGATION = (
    ("/", "Overview"),
    ("/agents", "Agents"),
    ("/runs", "Runs"),
    ("/waiting", "Waiting"),
    ("/approvals", "Approvals"),
    ("/dead-letters", "Dead letters"),
    ("/signals", "Signals"),
    ("/keys", "Keys"),
)

KEPT = ("status", "since", "slow", "q")
"""Filters that stay if a visitor chooses another job. Agents and keys are those of one job."""


@dataclass
class View:
    """The sources and templates of pages.

    Attributes:
        settings: Sources of the console.
        index: Index of the records.
        outside: Reads from brokers and Flink, and sends decisions.
        templates: The Jinja templates.
        messages: Messages for the next page of a visitor, by session: kind and text.
    """

    settings: ConsoleSettings
    index: TraceIndex
    outside: Outside
    templates: Environment = field(default_factory=create_environment)
    messages: dict[str, deque[tuple[str, str]]] = field(default_factory=dict[str, deque[tuple[str, str]]])

    def render_page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page, with what all pages show: navigation, messages and problems.

        Args:
            request: The request.
            template: Name of the template.
            status: Status of the response.
            **values: Further variables of the template.
        """
        text = self.templates.get_template(template).render(
            navigation=NAVIGATION,
            here="/" + request.url.path.strip("/").partition("/")[0],
            csrf=getattr(request.state, "csrf", ""),
            messages=list(self.messages.pop(getattr(request.state, "session", ""), ())),
            reading=not self.index.ready.is_set(),
            problem=self.index.problem,
            now=time.time(),
            all_jobs=self.index.jobs() if template not in ("failed.html", "journal.html") else [],
            job=CHOSEN_JOB.get(),
            kept=[(name, value) for name, value in request.query_params.items() if name in KEPT],
            stopped=self._stopped_jobs(),
            address=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            **values,
        )
        # Half a character in a record must not keep a page from being sent.
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)

    def _stopped_jobs(self) -> list[LocalJobState]:
        """Return the local jobs with unfinished runs that do not run now."""
        query = f"SELECT 1 FROM main.runs WHERE job = ? AND status IN ({OPEN}) LIMIT 1"
        jobs = [job for job in self.outside.local_jobs() if not job.runs]
        return [job for job in jobs if self.index.query_all(query, [job.run.identifier])]

    def show_message(self, request: Request, kind: str, text: str) -> None:
        """Show a message on the visitor's next page; ``kind`` is ``good`` or ``bad``."""
        if len(self.messages) > 1000:
            self.messages.clear()
        self.messages.setdefault(request.state.session, deque(maxlen=5)).append((kind, text))

    def execute_form(
        self, request: Request, act: Callable[[Mapping[str, list[str]]], str], back: str
    ) -> Response:
        """Execute a submitted form, and redirect to a page that shows the result or the error.

        Args:
            request: The request with the form.
            act: Executes the form, and returns the message for the visitor.
            back: Address of that page.
        """
        try:
            self.show_message(request, "good", act(request.state.form))
        except AgentsError as error:
            self.show_message(request, "bad", str(error))
        return RedirectResponse(back if "?" in back else link_to(back), 303)


def first_value(form: Mapping[str, list[str]], name: str) -> str:
    """Return the first value of a field of a form; empty if the form lacks it."""
    return form.get(name, [""])[0]


def parse_number(text: str | None, least: int = 0, most: int = 1_000_000) -> int:
    """Return the number in a text, limited to ``least`` to ``most``; ``least`` if it is no number."""
    try:
        return min(max(int(text or least), least), most)
    except ValueError:
        return least
