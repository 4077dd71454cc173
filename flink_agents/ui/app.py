"""Assembles the console: its pages and their guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from flink_agents.ui.guard import Guard
from flink_agents.ui.index import TraceIndex
from flink_agents.ui.outside import Outside
from flink_agents.ui.pages import acting, keys, watching
from flink_agents.ui.pages.view import View
from flink_agents.ui.settings import CHOSEN_JOB, Access, ConsoleSettings
from flink_agents.ui.sources import Source, TraceFiles, TraceTopic

Page = Callable[[View, Request], Response]

PAGES: dict[str, Page] = {
    "/": watching.overview,
    "/agents": watching.agents,
    "/runs": watching.runs,
    "/run": watching.run,
    "/waiting": acting.waiting,
    "/approvals": acting.approvals,
    "/approval": acting.approval,
    "/dead-letters": acting.dead_letters,
    "/signals": acting.signals,
    "/keys": keys.keys,
    "/journal": keys.journal,
}
FORMS: dict[str, Page] = {
    "/approvals/answer": acting.answer,
    "/dead-letters/redrive": acting.redrive,
    "/signals/send": acting.send,
    "/keys/inspect": keys.inspect,
}

SLOW = ("/approval", "/journal")
"""Pages that ask a broker or a store while they are made. Forms do so, too."""

MOST_SLOW = 16
"""Slow pages and forms that are executed at once. Further ones wait."""


def make_index(settings: ConsoleSettings) -> TraceIndex:
    """Return an index of the records in the sources of the settings; it reads nothing yet."""
    sources: list[Source] = []
    if settings.trace is not None:
        sources.append(TraceFiles(settings.trace))
    if settings.trace_topic is not None:
        sources.append(TraceTopic(settings.trace_topic, settings.client))
    return TraceIndex(sources)


def make_app(settings: ConsoleSettings, access: Access, index: TraceIndex, outside: Outside) -> ASGIApp:
    """Return the console as an ASGI application. As long as it runs, it reads new records into the index.

    Args:
        settings: Sources of the console.
        access: Host names and token of the console.
        index: The index of records.
        outside: Reads from brokers and Flink, and sends decisions.
    """
    view = View(settings, index, outside)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        index.start()
        try:
            yield
        finally:
            index.close()
            outside.close()

    def missing(request: Request, error: Exception) -> Response:
        return view.render_page(request, "missing.html", 404, what="page", name=request.url.path)

    def failed(request: Request, error: Exception) -> Response:
        return view.render_page(request, "failed.html", 500, error=f"{type(error).__name__}: {error}"[:500])

    slow_limiter = CapacityLimiter(MOST_SLOW)
    routes = [
        *[
            Route(
                path,
                _handle_in_thread(page, view, slow_limiter) if path in SLOW else _create_handler(page, view),
                methods=["GET"],
            )
            for path, page in PAGES.items()
        ],
        *[
            Route(path, _handle_in_thread(page, view, slow_limiter), methods=["POST"])
            for path, page in FORMS.items()
        ],
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
    ]
    pages = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: missing, 500: failed})
    return Guard(pages, access)


def _create_handler(page: Page, view: View) -> Callable[[Request], Response]:
    # No coroutine: pages read files and brokers, each in a thread of the server.
    return partial(_of_job, page, view)


def _of_job(page: Page, view: View, request: Request) -> Response:
    """Return a page about the job that its address names, in a context of its own."""
    CHOSEN_JOB.set(request.query_params.get("job", ""))
    return page(view, request)


def _handle_in_thread(
    page: Page, view: View, limiter: CapacityLimiter
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that runs a page in a limited set of threads, so that it does not block others."""

    async def handle(request: Request) -> Response:
        return await to_thread.run_sync(_of_job, page, view, request, limiter=limiter)

    return handle
