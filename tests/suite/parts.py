"""The parts of ``scripts/nightly``. Each fits into an hour on two cores, except the soak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PYTEST = ("-m", "pytest", "-q", "-p", "tests.suite.progress", "-n", "auto", "--dist", "loadfile")
HARNESSES = (
    *("tests/runtime", "--ignore=tests/runtime/flink", "tests/examples", "tests/models"),
    *("--ignore-glob=*_mcp*", "--ignore-glob=*_vector_*"),
)
"""The tests with a harness, for which a condition makes a difference."""


@dataclass(frozen=True)
class Part:
    """A command, and what it shows.

    Attributes:
        name: The name on the command line and in the table.
        shows: What a green run shows.
        arguments: Arguments of the Python interpreter.
        environment: Variables that the command gets.
        hours: The time that it may take.
    """

    name: str
    shows: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    hours: float = 1

    def in_minutes(self, minutes: float | None) -> Part:
        """Return the soak with another time under load; any other part as it is."""
        if self.name != "soak" or minutes is None:
            return self
        return replace(self, arguments=(*self.arguments, "--minutes", f"{minutes:g}"))

    @property
    def command(self) -> str:
        """The command as you would type it."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join(
            [
                *variables,
                "python",
                *(f"'{argument}'" if " " in argument else argument for argument in self.arguments),
            ]
        )


def _tests(name: str, shows: str, *arguments: str, condition: str | None = None) -> Part:
    environment = {} if condition is None else {"FLINK_AGENTS_TEST_MODE": condition}
    return Part(name, shows, (*PYTEST, *arguments), environment)


def _programs(name: str, shows: str, programs: int, *arguments: str) -> Part:
    command = ("-m", "tests.random_programs", "--programs", str(programs), "--seed", "1", *arguments)
    return Part(name, shows, command)


def _chaos(name: str, shows: str, module: str, *arguments: str) -> Part:
    return Part(name, shows, ("-m", f"tests.{module}", *arguments, "--json"))


def _benchmark(case: str, *arguments: str, name: str = "") -> Part:
    what = name or f"bench-{case}"
    return Part(what, f"figures of `{case}`", ("-m", "benchmarks", case, *arguments, "--json"))


PARTS = (
    _tests("slow", "tests that are too slow for every day", "-m", "nightly", "--ignore=tests/cluster"),
    _tests("clusters", "clusters survive SIGKILL, rescaling, savepoints", "-m", "nightly", "tests/cluster"),
    _tests("products", "the rows that covering arrays leave out", "--product", "-m", "product", condition=""),
    _tests("plain", "every harness without any condition", "-m", "not minicluster", *HARNESSES, condition=""),
    _tests(
        *("replay", "every run executed twice, a new operator for each input"),
        *("-m", "not minicluster", *HARNESSES),
        condition="replay,restart",
    ),
    _tests(
        *("crash", "a crash before and after each append and each commit"),
        *("-m", "not minicluster", *HARNESSES),
        condition="crash",
    ),
    Part(
        "trace",
        "an hour of trace at 2,000 runs/s stays within its bounds",
        ("-m", "tests.trace.hour", "--json"),
    ),
    _programs("programs", "random programs recover from a crash anywhere", 3000),
    _programs("programs-waits", "the same with pauses, signals, approvals, delayed events", 1000, "--waits"),
    _programs("programs-overtake", "the same if inputs overtake suspended runs", 500, "--overtake"),
    _programs("programs-lag", "the same if Flink's thread lags", 200, "--overtake", "--lag"),
    Part(
        "chats",
        "random conversations with models and tools",
        ("-m", "tests.random_chats", "--programs", "1000"),
    ),
    Part("mutations", "random programs find defects", ("-m", "tests.mutations", "--programs", "300")),
    Part("mutations-suite", "the suite finds defects", ("-m", "tests.mutations", "--suite", "--check")),
    Part(
        *("lowest", "the wheel with the lowest versions that it allows"),
        ("-m", "tests.release.bounds", "lowest"),
    ),
    Part(
        *("newest", "the wheel with the newest versions that it allows"),
        ("-m", "tests.release.bounds", "newest"),
    ),
    _chaos(
        *("chaos-sqlite", "SIGKILL on a cluster, branching programs, SQLite", "chaos", "--job", "branching"),
        *("--events", "20000", "--kills", "30"),
    ),
    _chaos(
        *("chaos-kafka", "the same with Kafka and its broker away for a minute", "chaos", "--store", "kafka"),
        *("--events", "20000", "--kills", "20", "--overlaps", "2", "--outage", "60"),
    ),
    _chaos("chaos-sleeps", "runs that sleep survive SIGKILL", "chaos_waits", "sleeps"),
    _chaos(
        *("chaos-approvals", "approvals survive SIGKILL", "chaos_waits", "approvals"),
        *("--inputs", "500", "--keys", "20"),
    ),
    _chaos(
        *("chaos-savepoint", "10,000 suspended runs survive a savepoint", "chaos_waits", "savepoint"),
        *("--inputs", "10000"),
    ),
    _chaos(
        *("chaos-two-jobs", "two jobs over Kafka survive SIGKILL", "chaos_two_jobs"),
        *("--orders", "200", "--kills", "6"),
    ),
    _chaos(
        *(
            "chaos-local",
            "local jobs resume after SIGKILL of the tree, the script, the JVM",
            "chaos",
            "--local",
        ),
        *("--kills", "100"),
    ),
    Part(
        "soak",
        "two hours under load, with kills: nothing grows",
        ("-m", "tests.soak", "--json"),
        hours=3,
    ),
    Part("keys-sqlite", "bytes per key, restart", ("-m", "benchmarks", "keys", "--json")),
    Part("keys-kafka", "bytes per key, restart", ("-m", "benchmarks", "keys", "--store", "kafka", "--json")),
    _benchmark("static"),
    _benchmark("async"),
    _benchmark("durable"),
    _benchmark("durable", "--store", "kafka", name="bench-durable-kafka"),
    _benchmark("latency"),
    _benchmark("hold"),
    _benchmark("signal"),
    _benchmark("resume"),
    _benchmark("kit"),
)
