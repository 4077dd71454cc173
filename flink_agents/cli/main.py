"""Commands of ``flink-agents``. Each imports its modules when it runs, so that all start fast."""

from __future__ import annotations

import sys
from importlib import metadata
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from flink_agents.api.errors import SetupError
from flink_agents.api.settings.options import JOB_VARIABLE
from flink_agents.cli.cluster import Directory, address_of, cancel, cluster_app, run, stop
from flink_agents.cli.erase import erase
from flink_agents.cli.errors import from_command_line, prints_errors, runs_no_jobs
from flink_agents.cli.explain import explain
from flink_agents.cli.job_file import (
    NAME,
    JobGroup,
    defaults_of,
    find_job_file,
    given_options,
    read_job_file,
    takes_options,
)
from flink_agents.cli.journals.commands import journal_app
from flink_agents.cli.kafka.approvals import approvals_app, signal
from flink_agents.cli.kafka.commands import kafka_app
from flink_agents.cli.runs.commands import runs_app, trace
from flink_agents.cli.runs.top import top as top_command
from flink_agents.cli.runs.why import why
from flink_agents.cli.ui import ui

app = typer.Typer(
    name="flink-agents",
    cls=JobGroup,
    help="Durable AI agents on Apache Flink.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the other style shows switches as options with a value.
    rich_markup_mode=None,
    context_settings={"max_content_width": 110},
)
plan_app = typer.Typer(help="Inspect the plan of an agent.", no_args_is_help=True)
app.add_typer(plan_app, name="plan")
app.add_typer(journal_app, name="journal")
app.add_typer(kafka_app, name="kafka")
app.add_typer(cluster_app, name="cluster")
app.command()(run)
app.command()(stop)
app.command()(cancel)
app.add_typer(approvals_app, name="approvals")
app.command()(signal)
app.command()(explain)
app.add_typer(runs_app, name="runs")
app.command()(trace)
app.command()(why)
app.command("top")(top_command)
app.command()(erase)
app.command()(ui)

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}


@app.command()
def version() -> None:
    """Print the version of this package."""
    from flink_agents.api.common.installation import DISTRIBUTION

    typer.echo(f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}")


def _version_and_exit(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
@prints_errors
def top(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version_and_exit, help="Same as 'version'."),
    ] = False,
    job: Annotated[
        str | None,
        typer.Option(envvar=JOB_VARIABLE, help="A job of flink-agents.toml, whose options are the defaults."),
    ] = None,
) -> None:
    """Durable AI agents on Apache Flink."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Not each terminal has the characters of each key, nor those of a tree.
            stream.reconfigure(errors="backslashreplace")
    group = context.command
    command = context.invoked_subcommand
    if not isinstance(group, JobGroup) or not takes_options(group, command):
        if "job" in from_command_line(context):
            raise typer.BadParameter(f"{command!r} takes no options of {NAME}", param_hint="--job")
        return
    passed_options = given_options(group.commands[command or ""], group.arguments)
    if "--help" in passed_options:
        # It shows defaults, and those of the file may be secrets.
        return
    file = find_job_file()
    if file is not None:
        context.default_map = defaults_of(group, read_job_file(file, job), passed_options)
    elif job is not None:
        raise typer.BadParameter(f"there is no {NAME} here", param_hint="--job")


@app.command()
@prints_errors
def doctor(
    cluster: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Check the Flink cluster with this REST address instead."),
    ] = None,
    data: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check this machine and environment, or a cluster.

    Each problem comes with its fix. The exit code is 1 if a check has failed.
    """
    from flink_agents.cli.checks.machine import render_json, render_table, run_checks

    if data is not None:
        cluster = address_of(data, cluster)
    if cluster is None:
        results = run_checks()
    else:
        from flink_agents.cli.checks.cluster import cluster_checks

        results = cluster_checks(cluster)
    typer.echo(render_json(results) if as_json else render_table(results))
    if any(result.status == "fail" for result in results):
        raise typer.Exit(1)


@app.command()
@prints_errors
def new(
    directory: Annotated[
        Path, typer.Argument(help="Directory to create; its last part names the project, such as my-agent.")
    ],
    template: Annotated[
        str,
        typer.Option(help="basic: durable steps. support: a model, a tool, approvals, Kafka and a window."),
    ] = "basic",
) -> None:
    """Create a project: an agent, its tests, a job and a README."""
    from flink_agents.cli.project.new import write_project

    for path in write_project(directory, template):
        typer.echo(f"wrote {path}")
    script = "job.py" if template == "basic" else "demo.py"
    typer.echo(f"next: cd {directory}, then python -m pytest, then python {script}")


@app.command(context_settings=PASS_THROUGH)
@prints_errors
def demo(context: typer.Context) -> None:
    """Run a demo; other arguments go to its script.

    It is examples/review_analysis.py of the checkout; with --agents, a support desk with Kafka and a model
    that answers offline. With --ui, its runs are shown in the browser.
    """
    arguments = list(context.args)
    run = _run_demo
    if "--agents" in arguments:
        from flink_agents.cli.demo import run_support_demo as run

        arguments.remove("--agents")
    if "--ui" in arguments:
        from flink_agents.cli.demo import demo_with_console

        arguments.remove("--ui")
        return demo_with_console(lambda: run(arguments))
    run(arguments)


def _run_demo(arguments: list[str]) -> None:
    import runpy

    script = example_script("review_analysis.py")
    sys.argv = [str(script), *arguments]
    # As `python script.py` does: the example may import modules next to it.
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def example_script(name: str) -> Path:
    """Return the path of an example of the source checkout that this package runs from.

    Raises:
        SetupError: The package was installed without the examples.
    """
    script = Path(__file__).resolve().parents[2] / "examples" / name
    if not script.is_file():
        raise SetupError(
            f"The example {name} is not part of the installed package.",
            expected=str(script),
            fix="clone the source repository and run scripts/demo there",
        )
    return script


@plan_app.command("show")
@prints_errors
@runs_no_jobs
def plan_show(
    target: Annotated[
        str, typer.Argument(help="module:Agent, file.py:Agent, agents.yaml, agents.yaml:Name or plan.json.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole plan as JSON.")] = False,
    as_mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph for Mermaid.")] = False,
) -> None:
    """Compile an agent and show its actions, events and resources."""
    if as_json and as_mermaid:
        raise typer.BadParameter("--json and --mermaid exclude each other.")
    # As `python -m` does: the agent's module is in the current directory.
    sys.path.insert(0, str(Path.cwd()))
    from flink_agents.plan import load_target
    from flink_agents.plan.show import to_mermaid, to_text

    plan = load_target(target)
    if as_json:
        typer.echo(plan.to_json(indent=2))
    elif as_mermaid:
        typer.echo(to_mermaid(plan))
    else:
        typer.echo(to_text(plan))
