"""Sends requests about keys to a running job, and waits for its answers; and ``flink-agents runs end``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.api.events.key_requests import ACCEPTED, ENDED, end_request, for_key_text
from flink_agents.cli.errors import prints_errors
from flink_agents.cli.keys import key_text, shown_key
from flink_agents.cli.runs.places import AnswersTopic, Client, Files, Topic, TracePlace

if TYPE_CHECKING:
    from flink_agents.runtime.flink.following.rest import ClusterRest
    from flink_agents.ui.key_requests import KeyRequests

REJECTED_CODE = 1
"""Exit code if the job rejects a request, or you do not confirm it."""

NO_ANSWER = 4
"""Exit code if the job has not answered in time."""

Signals = Annotated[str, typer.Option("--signals", help="The topic that the job reads signals from.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="URL", help="REST address of the cluster, whose logs have the job's answer."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def requests_to(
    topic: str, client: str | None, rest_client: ClusterRest | None, answers: str | None
) -> KeyRequests:
    """Return an object that sends requests about keys, and reads the answers.

    Args:
        topic: The topic that the job reads signals from.
        client: The option ``--client``: addresses of brokers, or options of kafka-python as JSON.
        rest_client: The cluster whose logs have the answers; None if no cluster is named.
        answers: The topic of answers; None if none is named.
    """
    from flink_agents.cli.kafka.topics import client_options
    from flink_agents.ui.key_requests import KeyRequests

    return KeyRequests(topic, client_options(client), rest_client, answers)


@prints_errors
def runs_end(
    run: Annotated[str, typer.Argument(help="Id of the run, or its first digits if the trace has it.")],
    signals: Signals,
    key: Annotated[str | None, typer.Option(help="Its key. Default: the key in the trace.")] = None,
    reason: Annotated[str, typer.Option(help="The reason, for the dead letter.")] = "",
    by: Annotated[str | None, typer.Option(help="Your name, for the record.")] = None,
    path: Files = None,
    trace_topic: Topic = None,
    client: Client = None,
    cluster: Address = None,
    answers: AnswersTopic = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the end.")] = 60.0,
    yes: Yes = False,
) -> None:
    """End one unfinished run as a dead letter. The key continues with its next input.

    Outputs from before the run was suspended stay. To try again, redrive the dead letter.
    """
    from flink_agents.runtime.flink.following.rest import ClusterRest

    check_run_id(run)
    if key is None:
        run, text = _find_run(run, TracePlace(path, trace_topic, client))
    else:
        text = key_text(key)
    if not yes:
        typer.confirm(f"End run {run} of key {shown_key(text)} as a dead letter?", abort=True)
    rest_client = None if cluster is None else ClusterRest(cluster)
    requests = requests_to(signals, client, rest_client, answers)
    request = for_key_text(end_request(None, run, reason, by), text)
    job_answers = requests.ask_agents(request, timeout, (ENDED, "rejected"))
    if not requests.can_read_answers:
        return typer.echo(f"sent to {signals}; with --answers or --cluster, the job's answer is shown")
    report_answers(job_answers, timeout, (ENDED,))


def check_run_id(run: str) -> None:
    """Reject an empty id of a run: as a prefix, it would match each id.

    Raises:
        typer.BadParameter: It is empty.
    """
    if not run.strip():
        raise typer.BadParameter("name the run by its id, or its first digits", param_hint="RUN")


def report_answers(answers: list[dict[str, Any]], seconds: float, good: Sequence[str]) -> None:
    """Print the best answer of a job, and exit with an error unless its outcome is good.

    Args:
        answers: The last answer of each agent.
        seconds: How long the job had time to answer, for the error.
        good: The good outcomes, the best one first.

    Raises:
        typer.Exit: No answer came, the job is still working on the request, or it rejected the request.
    """
    from flink_agents.trace.rendering import escape_controls

    if not answers:
        typer.echo(f"the job has not answered within {seconds:g} s", err=True)
        raise typer.Exit(NO_ANSWER)
    # An agent without data of the key rejects a request that another one accepts.
    ranks = (*good, ACCEPTED)
    last = min(answers, key=lambda answer: (_answer_rank(answer, ranks), answer.get("known") is False))
    outcome = str(last.get("outcome"))
    reason = f": {last['reason']}" if last.get("reason") else ""
    typer.echo(
        escape_controls(f"{last.get('agent')}, key {last.get('key')}: {outcome}{reason}"),
        err=outcome not in good,
    )
    if outcome == ACCEPTED:
        raise typer.Exit(NO_ANSWER)
    if outcome not in good:
        raise typer.Exit(REJECTED_CODE)


def _answer_rank(answer: dict[str, Any], ranks: Sequence[str]) -> int:
    outcome = str(answer.get("outcome"))
    return ranks.index(outcome) if outcome in ranks else len(ranks)


def _find_run(run: str, place: TracePlace) -> tuple[str, str]:
    """Return the whole id of a run, and the canonical text of its key, from the trace."""
    from flink_agents.api.errors import TraceNotFoundError

    keys_by_run = {
        record.run_id: record.key for record in place.read_records() if record.run_id.startswith(run)
    }
    if len(keys_by_run) != 1:
        raise TraceNotFoundError(
            f"the trace has {len(keys_by_run) or 'no'} run(s) whose id begins with {run}",
            expected="one",
            fix="pass the whole id and --key KEY",
        )
    return next(iter(keys_by_run.items()))
