"""``flink-agents ui``: the console in the browser."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.api.common.installation import install_command
from flink_agents.api.settings.options import CONSOLE_TOKEN_VARIABLE
from flink_agents.cli.errors import prints_errors, runs_no_jobs
from flink_agents.cli.local_jobs import state_directory
from flink_agents.cli.runs.places import AnswersTopic

if TYPE_CHECKING:
    from flink_agents.plan.model import AgentPlan
    from flink_agents.ui.settings import Access, ConsoleSettings, JournalReader

EXTRA = ("uvicorn", "starlette", "jinja2", "markupsafe", "anyio", "h11")
"""Modules of the extra ``ui``."""


@prints_errors
@runs_no_jobs
def ui(
    path: Annotated[
        Path | None, typer.Option("--path", help="Directory or file of records. Default: trace.directory.")
    ] = None,
    trace_topic: Annotated[str | None, typer.Option(help="A topic of records.")] = None,
    client: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|JSON", help="The brokers, or options of kafka-python as JSON."),
    ] = None,
    requests: Annotated[str | None, typer.Option(help="The topic of requests for approvals.")] = None,
    signals: Annotated[str | None, typer.Option(help="The topic that the job reads signals from.")] = None,
    answers: AnswersTopic = None,
    dead_letters: Annotated[
        list[str] | None, typer.Option(help="A topic of dead letters; any number of them.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="URL", help="REST address of a cluster.")] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option(help="An agent for its graph, such as module:Agent or plan.json; any number of them."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="The store of the journal. Default: the option's.")
    ] = None,
    journal: Annotated[str | None, typer.Option(metavar="FILE", help="The journal as a file.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 takes a free one.")] = 8700,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=CONSOLE_TOKEN_VARIABLE, help="Token that visitors need. Set it with the variable."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name of this machine; any number of them.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show jobs, runs and waits in the browser, and take answers there."""
    from flink_agents.ui.settings import Access, ConsoleSettings

    # Checked first: an address without a token is an error, whatever the console shows.
    access = Access(host, port, token, tuple(allow_host or ()))
    needs_client = trace_topic or requests or signals or dead_letters
    settings = ConsoleSettings(
        trace=_trace_directory(path, trace_topic),
        trace_topic=trace_topic,
        client=_parse_client(client) if needs_client or client else {},
        requests=requests,
        signals=signals,
        answers=answers,
        dead_letters=tuple(dead_letters or ()),
        cluster=cluster,
        plans=_read_plans(plan or ()),
        journals=_journal_reader(store, journal),
        state_dirs=(state_directory(),),
    )
    serve_console(settings, access, open_browser)


def serve_console(settings: ConsoleSettings, access: Access, open_browser: bool = False) -> None:
    """Serve the console, and return when it is interrupted.

    Raises:
        MissingExtraError: Its packages are not installed.
        ConsoleError: The port is in use.
    """
    with _create_server(settings, access) as (server, listener, address):
        typer.echo(f"the console is at {address}; stop it with Ctrl-C")
        if open_browser:
            webbrowser.open(address)
        server.run([listener])


@contextmanager
def console_beside(trace: Path, port: int = 8700) -> Iterator[str]:
    """Serve the console of a job in a thread of this process during the block; yield its address.

    Args:
        trace: Directory of the job's trace.
        port: Its port. If it is in use, a free one.
    """
    from flink_agents.api.errors import ConsoleError
    from flink_agents.ui.settings import Access, ConsoleSettings

    settings = ConsoleSettings(trace=trace)
    with ExitStack() as stack:
        try:
            server, listener, address = stack.enter_context(_create_server(settings, Access(port=port)))
        except ConsoleError:
            server, listener, address = stack.enter_context(_create_server(settings, Access(port=0)))
        thread = threading.Thread(target=server.run, args=([listener],), name="flink-agents-ui", daemon=True)
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def _create_server(settings: ConsoleSettings, access: Access) -> Iterator[tuple[Any, socket.socket, str]]:
    """Yield a server that does not run yet, the socket on which it will listen, and its address."""
    from flink_agents.api.errors import MissingExtraError

    try:
        from flink_agents.ui.app import make_app, make_index
        from flink_agents.ui.outside import Outside
        from flink_agents.ui.serving import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise MissingExtraError(
            "the console needs packages that are not installed",
            found=f"no module {error.name}",
            fix=install_command("ui"),
        ) from error
    with _open_socket(access) as listener:
        access = replace(access, port=listener.getsockname()[1])
        name = f"[{access.host}]" if ":" in access.host else access.host
        app = make_app(settings, access, make_index(settings), Outside(settings))
        yield make_server(app), listener, f"http://{name}:{access.port}"


def _open_socket(access: Access) -> socket.socket:
    from flink_agents.api.errors import ConsoleError

    family = socket.AF_INET6 if ":" in access.host else socket.AF_INET
    try:
        return socket.create_server((access.host, access.port), family=family)
    except OSError as error:
        raise ConsoleError(
            f"the console cannot listen at {access.host}, port {access.port}",
            found=str(error),
            fix="choose another port: --port 0 takes a free one",
        ) from error


def _trace_directory(path: Path | None, topic: str | None) -> Path | None:
    if path is not None or topic is not None:
        return path
    from flink_agents.cli.runs.places import configured_directory

    return configured_directory()


def _parse_client(client: str | None) -> dict[str, Any]:
    from flink_agents.cli.kafka.topics import client_options

    return client_options(client)


def _read_plans(targets: Sequence[str]) -> tuple[AgentPlan, ...]:
    if not targets:
        return ()
    # As `python -m` does: the agent's module is in the current directory.
    sys.path.insert(0, str(Path.cwd()))
    from flink_agents.plan import load_target

    return tuple(map(load_target, targets))


def _journal_reader(store: str | None, journal: str | None) -> JournalReader | None:
    """Return the function that reads journals for the console; None if there is no store.

    Raises:
        OptionError: The named store or file does not exist.
    """
    from flink_agents.api.errors import OptionError
    from flink_agents.cli.journals.operations import Place, show_key

    place = Place(store, {} if journal is None else {"path": journal})
    try:
        place.create_store()
    except OptionError:
        if store or journal:
            raise
        return None

    def read(key: str, run: int | None) -> list[dict[str, Any]]:
        return place.run_query(partial(_show, key=key, run=run))

    async def _show(opened: Any, key: str, run: int | None) -> list[dict[str, Any]]:
        return await show_key(opened, key, None, run)

    return read
