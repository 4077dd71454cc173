"""The peers: what runs, with what settings, and what each one guarantees."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "flink-agents-python"


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
        lock: Its locked requirements in ``locks/``; None if it runs in the environment of this checkout.
        file: Its program.
        roles: Its processes, in the order in which they start.
        inputs: Inputs of the run ``rate``.
        settings: Settings for throughput.
        durable: What survives a crash of the machine, and after which flush.
        npm: A package of npm with a binary that it needs, in ``locks/npm.json``.
    """

    name: str
    title: str
    lock: str | None
    file: str
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

PEERS = {
    one.name: one
    for one in (
        Peer(
            OURS,
            "flink-agents-python, SQLite",
            None,
            "ours.py",
            (program("ours.py"),),
            20_000,
            "defaults; parallelism 1",
            "each step, before the action continues: one fsync for all that wait",
        ),
        Peer(
            "handwritten",
            "asyncio and SQLite by hand",
            None,
            "handwritten.py",
            (program("handwritten.py"),),
            20_000,
            "1,000 inputs in flight; group commit",
            "each step, before the next one: one fsync for all that wait",
        ),
        Peer(
            "restate",
            "Restate 1.7",
            "restate",
            "restate_app.py",
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
            "dbos_app.py",
            (program("dbos_app.py"),),
            600,
            "async workflows and steps; 100 in flight",
            "each step, a SQLite transaction of its own (synchronous = FULL); no counter per key",
        ),
        Peer(
            "langgraph",
            "LangGraph 1.2, SQLite",
            "langgraph",
            "langgraph_app.py",
            (program("langgraph_app.py"),),
            800,
            "functional API, durability 'sync', synchronous = FULL; 100 in flight",
            "each task's writes and each end of a run, one transaction each",
        ),
        Peer(
            "pyflink",
            "PyFlink AsyncFunction",
            None,
            "pyflink_async.py",
            (program("pyflink_async.py"),),
            20_000,
            "process mode (thread mode has no AsyncFunction), capacity 1,000",
            "nothing: a restarted job makes all steps since its last checkpoint again",
        ),
    )
}
