"""The peers: their programs, settings and guarantees."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "flink-agents-python"
OURS_KAFKA = "flink-agents-python-kafka"
OUR_LOCK = "ours"
"""The locked requirements of this package; its environment has this checkout besides."""


@dataclass(frozen=True)
class Role:
    """A process of a peer.

    Attributes:
        command: Its command line; names in braces are filled in.
        worker: True if SIGKILL hits it in the run ``kill``.
        counted: True if its CPU and memory count. The client that sends inputs does not.
        marks: True if it writes the marks of ``workload``.
    """

    command: tuple[str, ...]
    worker: bool = True
    counted: bool = True
    marks: bool = True


def program(file: str) -> Role:
    """Return the role of a program that does everything."""
    return Role(("{python}", f"{{programs}}/{file}", "{mode}", "{inputs}", "{folder}"))


@dataclass(frozen=True)
class Peer:
    """A system that runs the workload.

    Attributes:
        name: What the command line calls it.
        title: What the page calls it.
        lock: Its locked requirements in ``locks/``; None if it needs the standard library alone.
        files: Its program, whose lines count; a server that it needs is not among them.
        roles: Its processes, in the order in which they start.
        inputs: Inputs of the run ``rate``: some ten seconds of work on two cores.
        settings: Settings for throughput.
        durable: What survives a crash of the machine, and after which flush.
        npm: A package of npm with a binary that it needs, in ``locks/npm.json``.
    """

    name: str
    title: str
    lock: str | None
    files: tuple[str, ...]
    roles: tuple[Role, ...]
    inputs: int
    settings: str
    durable: str
    npm: str | None = None


_RESTATE = (
    Role(("{npm}/bin/restate-server", "--base-dir", "{folder}/restate"), worker=False, marks=False),
    Role(("{python}", "{programs}/restate_app.py", "{mode}", "{inputs}", "{folder}"), marks=False),
    Role(
        ("{ours}", "{programs}/restate_driver.py", "{mode}", "{inputs}", "{folder}"),
        worker=False,
        counted=False,
    ),
)

_KAFKA = (
    Role(
        ("{python}", "{programs}/kafka_broker.py", "{mode}", "{inputs}", "{folder}"),
        worker=False,
        marks=False,
    ),
    program("ours_kafka.py"),
)

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            OURS,
            "flink-agents-python, SQLite",
            OUR_LOCK,
            ("ours.py",),
            (program("ours.py"),),
            20_000,
            "defaults; parallelism 1",
            "each step, before the action continues: one fsync for all that wait",
        ),
        Peer(
            OURS_KAFKA,
            "flink-agents-python, Kafka",
            OUR_LOCK,
            ("ours.py", "ours_kafka.py"),
            _KAFKA,
            10_000,
            "defaults; parallelism 1; one broker with log.flush.interval.messages = 1",
            "each step, before the action continues: one append, and one fsync, for all that wait",
        ),
        Peer(
            "handwritten",
            "asyncio and SQLite by hand",
            None,
            ("handwritten.py",),
            (program("handwritten.py"),),
            100_000,
            "1,000 inputs in flight; group commit",
            "each step, before the next one: one fsync for all that wait",
        ),
        Peer(
            "restate",
            "Restate 1.7",
            "restate",
            ("restate_app.py", "restate_driver.py"),
            _RESTATE,
            3_000,
            "hypercorn over HTTP/2; 200 requests in flight",
            "each step, when the server's log (RocksDB) has it: an fsync per batch of its write-ahead log",
            npm="restate",
        ),
        Peer(
            "dbos",
            "DBOS 3.4, SQLite",
            "dbos",
            ("dbos_app.py",),
            (program("dbos_app.py"),),
            600,
            "async workflows and steps; 100 in flight",
            "each step, a SQLite transaction of its own (synchronous = FULL); no counter per key",
        ),
        Peer(
            "langgraph",
            "LangGraph 1.2, SQLite",
            "langgraph",
            ("langgraph_app.py",),
            (program("langgraph_app.py"),),
            800,
            "functional API, durability 'sync', synchronous = FULL; 100 in flight",
            "the end of a run, before its result: one transaction; results of tasks in the background",
        ),
        Peer(
            "pyflink",
            "PyFlink AsyncFunction",
            OUR_LOCK,
            ("pyflink_async.py",),
            (program("pyflink_async.py"),),
            20_000,
            "process mode (thread mode has no AsyncFunction), capacity 1,000; latency: bundles of 1",
            "nothing: a restarted job makes all steps since its last checkpoint again",
        ),
    )
}
