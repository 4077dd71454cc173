"""The examples do what their pages say.

Most run in this process, with the JVM that all tests share. ``scripts/nightly`` also runs each as you do:
``python examples/...`` from an unprepared shell.
"""

from __future__ import annotations

# pyright: reportMissingImports=false
import io
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from review_agents import ReviewAnalysisAgent
from review_data import load_sample
from review_result import as_json_lines, expected_result

from flink_agents.testing.models import ModelServer, Reply, ServedRequest, ToolCall

EXAMPLES = Path(__file__).parents[2] / "examples"

OF_THE_MACHINE = ("HOME", "JAVA_HOME", "JVM_ARGS", "HTTPS_PROXY", "REQUESTS_CA_BUNDLE")
"""How this machine starts a JVM and reaches Maven Central."""

pytestmark = pytest.mark.minicluster


Run = Callable[..., str]


def execute_example(
    directory: Path, *arguments: str, said: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Execute an example, which may fail, in a process of its own.

    Args:
        directory: Its working directory.
        *arguments: Its name and options.
        said: What it reads from its standard input.
        **variables: Variables of its environment.
    """
    script, *options = arguments
    # As `env -i` does: no activated environment, not even a PATH.
    environment = {name: os.environ[name] for name in OF_THE_MACHINE if name in os.environ}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *options],
        cwd=directory,
        # Beside the scripts, examples of other tests would find what this one leaves.
        env=environment | {"FLINK_AGENTS_LOCAL_STATE_DIR": str(directory / "state")} | variables,
        input=said,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def run_in_own_process(directory: Path, *arguments: str, said: str | None = None) -> str:
    """Run an example as its readers do, and return what it printed."""
    result = execute_example(directory, *arguments, said=said)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run_here(directory: Path, *arguments: str) -> str:
    """Run an example in this process, and return what it printed."""
    script, *options = arguments
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(directory)
        patch.setattr(sys, "argv", [str(EXAMPLES / script), *options])
        patch.setenv("FLINK_AGENTS_LOCAL_STATE_DIR", str(directory / "state"))
        try:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        except SystemExit as end:
            assert end.code in (None, 0), end.code
    return printed.getvalue()


@pytest.fixture(params=[run_here, pytest.param(run_in_own_process, marks=pytest.mark.nightly)])
def run_example(request: pytest.FixtureRequest) -> Run:
    """A function that runs an example and returns what it printed."""
    return request.param


def test_hello(tmp_path: Path) -> None:
    lines = run_in_own_process(tmp_path, "hello.py").splitlines()
    assert lines[-3:] == ["hello Ada (1)", "hello Ada (2)", "hello Alan (1)"]


def test_own_tables(tmp_path: Path, run_example: Run) -> None:
    assert run_example(tmp_path, "own_tables.py").splitlines()[-2:] == ["ada 8", "alan 4"]


def test_table_windows(tmp_path: Path, run_example: Run) -> None:
    printed = run_example(tmp_path, "table_windows.py")
    assert printed.splitlines()[-2:] == ["12:00 70", "12:01 50"]


@pytest.mark.nightly
def test_workflow_single_agent(tmp_path: Path) -> None:
    orders = tmp_path / "orders.txt"
    orders.write_text("ada 400\nada 50.5\nalan much\nada 100\n", encoding="utf-8")
    printed = run_in_own_process(tmp_path, "workflow_single_agent.py", "orders.txt")
    messages = [line.partition("> ")[2] or line for line in printed.splitlines()]
    assert [message for message in messages if message.startswith("ada:")] == [
        "ada: booked 400.00, 400.00 in total",
        "ada: booked 50.50, 450.50 in total",
        "ada: please pay, 50.50 above the credit",
    ]
    assert "alan: 'much' is no amount" in messages


def test_workflow_multiple_agent(tmp_path: Path, run_example: Run) -> None:
    assert run_example(tmp_path, "workflow_multiple_agent.py").splitlines()[-5:] == [
        "kettle: [-1, 1, 1], better, 3 left",
        "kettle: [1], the same, 3 left",
        "lamp: [-1], the same, stock unknown",
        "lamp: [-1], worse, stock unknown",
        "lamp: [1], better, stock unknown",
    ]


@pytest.mark.nightly
def test_validator(tmp_path: Path, run_example: Run) -> None:
    assert run_example(tmp_path, "validator.py").splitlines()[-8:] == [
        "accepted: We are sorry: The kettle leaks. 40 back",
        "accepted: We are sorry: The lamp is broken. 45 back",
        "rejected: alan, after 1 attempts: eve: half is too much",
        "rejected: grace, after 3 attempts: 75 above the limit",
        "for review: ada 0: accept; 2 steps",
        "for review: alan 0: retry, accept; 4 steps",
        "for review: alan 2: reject; 2 steps",
        "for review: grace 0: retry, retry, retry; 6 steps",
    ]


def test_payments(tmp_path: Path, run_example: Run) -> None:
    *receipts, charged = run_example(tmp_path, "payments.py").splitlines()[-4:]
    assert [receipt.partition(": receipt ")[0] for receipt in receipts] == ["ada 400", "ada 50", "alan 25"]
    assert charged == "failed once, charged 3 times: ada 400, ada 50, alan 25"


@pytest.mark.nightly
def test_rag(tmp_path: Path, run_example: Run) -> None:
    forgotten = "To reset a forgotten password, follow the link on the login page. [password]"
    first = run_example(tmp_path, "rag.py", str(tmp_path)).splitlines()[-6:]
    assert first == [
        "4 articles: battery, password, returns, shipping",
        f"ada: {forgotten}",
        "ada: A parcel that arrived broken can be sent back within 30 days. We refund the money. [returns]",
        f"ada: {forgotten}",
        "ada: you asked before: I forgot my login credentials",
        "bo: Shipping takes two days within the country and five days abroad. [shipping]",
    ]
    # Another submission remembers the questions.
    again = run_example(tmp_path, "rag.py", str(tmp_path)).splitlines()
    assert "bo: you asked before: When does my delivery come? I live abroad." in again


def test_mcp_tools(tmp_path: Path, run_example: Run) -> None:
    notice = "Reservations are kept for two days."
    assert run_example(tmp_path, "mcp_tools.py").splitlines()[-3:] == [
        f"ada: 1 x cocoa reserved. {notice}",
        f"ada: 2 x tea reserved. {notice}",
        f"bo: Error executing tool reserve: there are only 3 of cocoa. {notice}",
    ]


@pytest.mark.nightly
def test_react_agent(tmp_path: Path) -> None:
    lines = run_in_own_process(tmp_path, "react_agent.py").splitlines()[-4:]
    assert lines == [
        "ada: Order 7 is delivered yesterday.",
        "ada: We have refunded 7.",
        "bo: Order 8 is still in the warehouse.",
        "failed once; 7 requests to the model, refunds of 7",
    ]


@pytest.mark.nightly
def test_pydantic_ai_agent(tmp_path: Path) -> None:
    lines = run_in_own_process(tmp_path, "pydantic_ai_agent.py").splitlines()[-4:]
    assert lines == [
        "ada gets 40: a kettle costs 40",
        "ada gets 60: a lamp costs 75",
        "bo gets 0: we sell no toaster",
        "failed once; 6 requests to the model",
    ]


def judging(request: ServedRequest) -> Reply:
    """What the word list says of a snippet, as a model answers it."""
    return Reply(
        tool_calls=[ToolCall("final_result", {"score": ReviewAnalysisAgent.sentiment(request.text)})]
    )


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("fails", [False, True])
def test_review_analysis_asks_a_model(
    tmp_path: Path, run_example: Run, model_server: Callable[..., ModelServer], fails: bool
) -> None:
    """The server says the same as the word list, so that the result is that of the offline analyst."""
    server = model_server(judging)
    options = ["--sample", "--model", "openai-chat:any", "--base-url", server.base_url]
    printed = run_example(
        tmp_path, "review_analysis.py", *options, *["--fail"] * fails, "--output", "model.jsonl"
    )
    assert "comes to the same result" in printed
    assert ("was restored from its checkpoint" in printed) == fails
    analysed, suggestions = expected_result(load_sample(), 20)
    assert (tmp_path / "model.jsonl").read_text() == as_json_lines(suggestions)
    text_counts = Counter(request.text for request in server.requests)
    assert set(text_counts) == {analysis.review.text for analysis in analysed}
    # Of those that were under way at the failure, no answer was recorded.
    assert server.count == 33 if not fails else server.count < 2 * 33


@pytest.mark.nightly
def test_review_analysis_comes_to_the_same_with_and_without_a_failure(tmp_path: Path) -> None:
    plain = run_in_own_process(tmp_path, "review_analysis.py", "--sample", "--output", "plain.jsonl")
    failed = run_in_own_process(
        tmp_path, "review_analysis.py", "--sample", "--fail", "--parallelism", "2", "--output", "failed.jsonl"
    )
    assert "snippet 33 of 33 analysed" in plain
    assert "was restored from its checkpoint" in failed
    assert (tmp_path / "failed.jsonl").read_text() == (tmp_path / "plain.jsonl").read_text() != ""


@pytest.mark.nightly
def test_review_analysis_that_is_killed_resumes(tmp_path: Path) -> None:
    done = execute_example(tmp_path, "review_analysis.py", "--sample", "--kill", "--output", "killed.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"--kill: killed at snippet \d+, with kill -9", done.stdout)
    assert re.search(r"resuming 'review analysis' from checkpoint \d+ of", done.stderr)
    analysed, suggestions = expected_result(load_sample(), 20)
    assert len(analysed) == 33
    assert (tmp_path / "killed.jsonl").read_text() == as_json_lines(suggestions)


@pytest.mark.nightly
def test_two_jobs_over_kafka(tmp_path: Path) -> None:
    """The first one is killed: nothing is lost, nothing is done twice, and the lineage is complete."""
    *previous_lines, first, second, third, last = run_in_own_process(
        tmp_path, "two_jobs_over_kafka.py"
    ).splitlines()
    assert any(line.startswith("job 1 killed after ") for line in previous_lines)
    assert [first, second, third] == [
        "40 orders priced, 40 shipped, each once: True",
        "prices asked for 40 orders, one key each: True",
        "the parcels come from 40 messages of the topic orders",
    ]
    assert last.startswith("the last one: orders/0/") and last.endswith(" -> Pricing -> Shipping")


@pytest.mark.nightly
def test_kafka_in_out(tmp_path: Path, run_example: Run) -> None:
    assert run_example(tmp_path, "kafka_in_out.py").splitlines()[-3:] == [
        'accounts: {"customer":"ada","total":400.0} flink-agents-sequence=0',
        'accounts: {"customer":"ada","total":450.5} flink-agents-sequence=1',
        'orders-dead: {"customer": "alan", "amount": "much"} flink-agents-error-type=ValidationError',
    ]


@pytest.mark.nightly
def test_human_approval(tmp_path: Path) -> None:
    """The console, which asks without ``--terminal``, has tests of its own."""
    printed = run_in_own_process(
        tmp_path, "human_approval.py", "--terminal", said="why\n40\n\nnan\nno it was used\n"
    )
    questions = [line.partition("?")[0] for line in printed.splitlines() if "and the reason]" in line]
    kettle = '{"order": "kettle", "amount": 400.0}'
    lamp = '{"order": "lamp", "amount": 75.5}'
    # What is no answer is asked again.
    assert questions == [f"ada: tool pay {kettle}"] * 2 + [f"cy: tool pay {lamp}"] * 3
    assert printed.splitlines()[-3:] == [
        "ada: 40 paid for kettle",
        "bo: 4 paid for tea",
        "cy: nothing paid for lamp: tool pay was not approved, but denied by terminal: it was used",
    ]


def run_support_demo(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``scripts/demo --agents`` with the installed command."""
    command = [str(Path(sys.executable).with_name("flink-agents")), "demo", "--agents"]
    environment = {name: os.environ[name] for name in OF_THE_MACHINE if name in os.environ}
    return subprocess.run(
        command, cwd=directory, env=environment | variables, capture_output=True, text=True, check=False
    )


def test_the_support_desk_thinks_waits_for_a_person_and_corrects_its_window(tmp_path: Path) -> None:
    done = run_support_demo(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    [day] = {line.split()[1] for line in lines if line.startswith("window ")}
    steps = [
        """model     reads 'Order o-17. My lamp arrived broken.', calls order_total {"order": "o-17"}""",
        f"window    {day} refund: 1 tickets, 20.00 refunded",
        "person    approves refund {'amount': 75.0, 'ticket': 't-2', 'text': 'My lamp arrived broken.'}",
        "agent     t-2: 75.00 refunded. Sorry! Your money is on its way.",
        f"window    {day} refund: 2 tickets, 95.00 refunded",
    ]
    shown = [line for line in lines if line in steps]
    # The last two are in two topics, which are read at once.
    assert (shown[:3], sorted(shown)) == (steps[:3], sorted(steps))
    assert Counter(line.split()[0] for line in lines)["agent"] == 4


@pytest.mark.nightly
def test_the_demo_of_the_support_desk_shows_why_its_job_failed(tmp_path: Path) -> None:
    done = run_support_demo(tmp_path, FLINK_AGENTS_KAFKA_JAR=str(tmp_path / "gone.jar"))
    assert done.returncode == 1
    assert "the job failed:" in done.stderr and "FA7101" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options", [("--terminal",), pytest.param(("--port", "0"), marks=pytest.mark.nightly)]
)
def test_nobody_waits_for_the_answers_of_a_job_that_failed(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = execute_example(
        tmp_path, "human_approval.py", *options, said="", FLINK_AGENTS_KAFKA_JAR=str(tmp_path / "gone.jar")
    )
    assert done.returncode == 1
    assert "FA7101" in done.stderr
    assert done.stderr.endswith("the job failed; what it said stands above\n")
