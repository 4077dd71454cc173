"""``flink-agents demo``: ``--ui`` shows its runs in the browser, and ``--agents`` runs a support desk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from flink_agents.api.settings.options import AgentOptions, environment_name
from flink_agents.cli.ui import console_beside


def demo_with_console(run: Callable[[], None], wait: Callable[[], object] | None = None) -> None:
    """Run a job with a trace and the console; return when the console is interrupted.

    Args:
        run: Runs the job; may raise ``SystemExit``.
        wait: Returns when the console should end. Default: never, until an interrupt.
    """
    with tempfile.TemporaryDirectory(prefix="flink-agents-demo-") as directory:
        os.environ[environment_name(AgentOptions.TRACE_LEVEL.key)] = "calls"
        os.environ[environment_name(AgentOptions.TRACE_DIRECTORY.key)] = directory
        with console_beside(Path(directory)) as address:
            typer.echo(f"the console is at {address}")
            webbrowser.open(address)
            try:
                run()
            except SystemExit as ended:
                # The runs of a failed demo are worth a look, too.
                if ended.code:
                    typer.echo(f"the demo ended with {ended.code}", err=True)
            typer.echo(f"its runs are at {address}; stop the console with Ctrl-C")
            try:
                (wait or threading.Event().wait)()
            except KeyboardInterrupt:
                typer.echo("stopped")


def run_support_demo(arguments: Sequence[str] = ()) -> None:
    """Write a project with the template ``support``, and run its demo.

    Args:
        arguments: Arguments of its script.

    Raises:
        SystemExit: The demo failed.
    """
    from flink_agents.cli.project.new import write_project

    with tempfile.TemporaryDirectory(prefix="flink-agents-demo-") as directory:
        project = Path(directory) / "support-desk"
        write_project(project, "support")
        done = subprocess.run([sys.executable, "demo.py", *arguments], cwd=project, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    typer.echo("to get these files: flink-agents new support-desk --template support")
