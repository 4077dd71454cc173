"""People approve refunds in the console. Run it with ``python examples/human_approval.py``.

The example starts a Kafka broker, a job that pays refunds, and the console (``flink-agents ui``). Small
refunds are paid at once. The run of a large one is suspended until a person approves it in the console,
possibly with another amount, or denies it. ``--terminal`` asks in the terminal instead.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from pydantic import BaseModel

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    ApprovalRequest,
    ApprovalResponse,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
    tool,
)
from flink_agents.api.errors import ApprovalDeniedError
from flink_agents.connectors.kafka import (
    KafkaApprovals,
    approvals_to_kafka,
    kafka_signals,
    kafka_sink,
    kafka_source,
)
from flink_agents.testing.kafka import KafkaBroker

CLAIMS = [
    {"customer": "ada", "order": "kettle", "amount": 400},
    {"customer": "bo", "order": "tea", "amount": 4},
    {"customer": "cy", "order": "lamp", "amount": 75.5},
]


class Claim(BaseModel):
    customer: str
    order: str
    amount: float


def is_large(arguments: dict[str, Any]) -> bool:
    return arguments["amount"] > 50


class Refunds(Agent):
    """Pays what customers claim, who are the keys."""

    @tool(needs_approval=is_large, approval_timeout=7 * 24 * 3600)
    @staticmethod
    def pay(order: str, amount: float) -> str:
        """Pay an amount back."""
        return f"{amount:g} paid for {order}"

    @action(InputEvent)
    async def refund(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        claim: Claim = event.input
        pay = ctx.get_resource("pay", "tool")
        try:
            result = await pay(order=claim.order, amount=claim.amount)
        except ApprovalDeniedError as denied:
            result = f"nothing paid for {claim.order}: {denied.message}"
        return OutputEvent(output=f"{claim.customer}: {result}")


def run_job(brokers: dict[str, Any]) -> None:
    """Pay refunds until the process ends."""
    env = AgentsExecutionEnvironment.get_execution_environment()
    env.stream_env.set_parallelism(1)
    env.stream_env.enable_checkpointing(1000)
    claims = kafka_source(env, "claims", value=Claim, on_error="fail", out_of_orderness=None, **brokers)
    answers = kafka_signals(env, "answers", on_error="ignore", **brokers)
    inputs = env.from_datastream(claims, lambda claim: claim.customer).with_signals(answers)
    refunds = inputs.apply(Refunds)
    approvals_to_kafka(refunds.approvals(), "approvals", **brokers)
    refunds.unmatched_signals().map(lambda unmatched: f"unmatched answer: {unmatched.reason}").print()
    refunds.to_datastream().sink_to(kafka_sink("receipts", **brokers))
    env.execute("refunds")


@contextmanager
def running_job(brokers: dict[str, Any], trace: Path) -> Iterator[None]:
    """Run the job in a separate process, as a cluster would, with a trace for the console.

    A job that ends by itself interrupts whoever waits for it.
    """
    command = [sys.executable, __file__, "--job", json.dumps(brokers)]
    traced = {"FLINK_AGENTS_TRACE_LEVEL": "calls", "FLINK_AGENTS_TRACE_DIRECTORY": str(trace)}
    process = subprocess.Popen(command, start_new_session=True, env=os.environ | traced)
    stopped = threading.Event()

    def watch() -> None:
        process.wait()
        if not stopped.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    # A shell that starts a script in the background lets it ignore interrupts.
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
        failed = process.poll() is not None
        stopped.set()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        watcher.join()
        if failed:
            raise SystemExit("the job failed; what it said stands above")


def write_claims(brokers: dict[str, Any]) -> None:
    producer = KafkaProducer(**brokers)
    for claim in CLAIMS:
        producer.send("claims", value=json.dumps(claim).encode())
    producer.close()


def receipts(brokers: dict[str, Any]) -> list[str]:
    """All receipts so far."""
    consumer: Any = KafkaConsumer(group_id=None, **brokers)
    try:
        partition = TopicPartition("receipts", 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek_to_beginning(partition)
        texts: list[str] = []
        while consumer.position(partition) < end:
            texts += [record.value.decode() for record in consumer.poll(timeout_ms=500).get(partition, ())]
        return texts
    finally:
        consumer.close()


def show_console(brokers: dict[str, Any], trace: Path, port: int) -> None:
    """Serve the console until Ctrl-C: its page of approvals asks, and its other pages show the runs."""
    topics = ["--requests", "approvals", "--signals", "answers"]
    command = [str(Path(sys.executable).with_name("flink-agents")), "ui", "--client", json.dumps(brokers)]
    with suppress(KeyboardInterrupt):
        subprocess.run([*command, *topics, "--path", str(trace), "--port", str(port)], check=False)
    for receipt in sorted(receipts(brokers)):
        print(receipt)


def ask_in_terminal(desk: KafkaApprovals, brokers: dict[str, Any]) -> None:
    """Ask for each request in the terminal, until all claims are settled."""
    answered: set[str] = set()
    while len(receipts(brokers)) < len(CLAIMS):
        for request in desk.pending():
            if request.id not in answered:
                answered.add(request.id)
                desk.answer(_ask(request))
        time.sleep(0.2)
    for receipt in sorted(receipts(brokers)):
        print(receipt)


def _ask(request: ApprovalRequest) -> ApprovalResponse:
    shown = json.dumps(dict(request.arguments))
    while True:
        print(f"{request.key}: {request.what} {shown}? [yes, an amount, or no and the reason]", flush=True)
        answer = read_answer(request.id, input())
        if answer is not None:
            return answer
        print("please answer yes, an amount such as 12.50, or no and the reason", flush=True)


def read_answer(request: str, said: str) -> ApprovalResponse | None:
    """The answer that somebody typed; None if it is none: nothing is guessed."""
    word, _, reason = said.strip().partition(" ")
    if said.strip().lower() in ("y", "yes"):
        return ApprovalResponse(id=request, approved=True, by="terminal")
    if word.lower().rstrip(",:") in ("n", "no"):
        return ApprovalResponse(id=request, approved=False, reason=reason.strip() or None, by="terminal")
    if re.fullmatch(r"\d{1,9}(\.\d{1,2})?", said.strip()):
        amount = {"amount": float(said)}
        return ApprovalResponse(id=request, approved=True, arguments=amount, by="terminal")
    return None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--terminal", action="store_true", help="ask in the terminal, not in the console")
    parser.add_argument("--port", type=int, default=8700, help="port of the console; 0 takes a free one")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job is not None:
        return run_job(json.loads(options.job))
    with tempfile.TemporaryDirectory() as directory, KafkaBroker(directory) as broker:
        brokers = broker.client_options
        desk = KafkaApprovals("answers", "approvals", **brokers)
        desk.create_topics()
        for topic in ("claims", "receipts"):
            KafkaApprovals(topic, **brokers).create_topics()
        write_claims(brokers)
        trace = Path(directory) / "trace"
        with running_job(brokers, trace):
            if options.terminal:
                ask_in_terminal(desk, brokers)
            else:
                show_console(brokers, trace, options.port)


if __name__ == "__main__":
    main()
