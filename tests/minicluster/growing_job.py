"""A job that gets further parts when one of its inputs has ended; as a script, a local job that resumes."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, Signal, action

HISTORY = 20
"""Number of inputs of the historian that end."""

KEYS = 5

FURTHER = 10
"""Number of records of an added list."""


def note(directory: Path, file: str, line: object) -> None:
    with (directory / file).open("a") as out:
        out.write(f"{line}\n")


def lines(directory: Path, file: str) -> list[str]:
    """The lines that an agent of the job has written."""
    path = directory / file
    return path.read_text().splitlines() if path.exists() else []


class Counting(Agent):
    """Counts the inputs of each key; of numbers of an endless stream, it writes some.

    Args:
        directory: The place of its file.
        file: Name of the file.
        waits: True to sleep after each input of the history.
    """

    def __init__(self, directory: Path, file: str, waits: bool = False) -> None:
        self.directory = directory
        self.file = file
        self.waits = waits

    @action(InputEvent)
    async def count(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number = event.input if isinstance(event.input, int) else event.input[0]
        seen = ctx.short_term_memory.get("seen", 0) + 1
        ctx.short_term_memory.set("seen", seen)
        if number < 1000 or number % 200 == 0:
            note(self.directory, self.file, f"{number} {seen}")
        if self.waits and number < 1000:
            await ctx.sleep(timedelta(days=1))
        return OutputEvent(output=number)


def key_of(record: Any) -> int:
    """Key of a number, or of a row with one."""
    return (record if isinstance(record, int) else record[0]) % KEYS


def numbers(env: AgentsExecutionEnvironment, name: str, start: int, count: int = 10**12) -> Any:
    """A stream of the user's own, without a uid."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    source = NumberSequenceSource(start, start + count - 1)
    stream = env.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), name)
    return stream.set_parallelism(1).map(lambda number: number).set_parallelism(1)


def signals(env: AgentsExecutionEnvironment) -> Any:
    """An endless stream of signals that nobody waits for."""
    return numbers(env, "signals", 0).map(
        lambda number: Signal(name="other", key=number % KEYS, value=number)
    )


def history_of(env: AgentsExecutionEnvironment, kind: str, parts: set[str]) -> Any:
    """The input of the historian, of which a part ends."""
    if kind in ("list", "signals"):
        history = env.from_list(range(HISTORY), key_of)
    elif kind == "table":
        from pyflink.table import DataTypes

        row = DataTypes.ROW([DataTypes.FIELD("number", DataTypes.BIGINT())])
        history = env.from_table(env.table_env.from_elements([(n,) for n in range(HISTORY)], row), key_of)
    else:
        stream = numbers(env, "history", 0, HISTORY)
        if kind == "joined":
            stream = stream.union(numbers(env, "more", 10**6))
        if "source" in parts:
            stream = stream.union(numbers(env, "further", 10**7))
        history = env.from_datastream(stream, key_of)
    return history.with_signals(signals(env)) if kind == "signals" or "signals" in parts else history


def build(
    env: AgentsExecutionEnvironment, directory: Path, kind: str, parts: set[str], waits: bool = False
) -> None:
    """Add the job to an environment.

    Args:
        env: The environment.
        directory: The place of the agents' files.
        kind: The input of the historian.
        parts: The parts that the job has gotten.
        waits: True if the runs of the historian sleep, so that it has not finished.
    """
    if "agent" in parts:
        stream = env.from_datastream(numbers(env, "other", 10**9), key_of)
        stream.apply(Counting(directory, "agent"), name="before")
    history = history_of(env, kind, parts)
    historian = history.apply(Counting(directory, "history", waits), name="historian")
    live = env.from_datastream(numbers(env, "live", 10**9), key_of)
    counted = live.apply(Counting(directory, "live"), name="live")
    if "list" in parts:
        listed = env.from_list(range(100, 100 + FURTHER), key_of)
        listed.apply(Counting(directory, "list"), name="list")
    if "chained" in parts:
        for number, stream in enumerate((historian, counted)):
            chained = env.from_datastream(stream.to_datastream(), key_of)
            chained.apply(Counting(directory, f"chained{number}"), name=f"chained{number}")
    if "reader" in parts:
        history.apply(Counting(directory, "reader"), name="reader")
    if "table" in parts:
        rows = env.table_env.to_data_stream(counted.to_table({"number": int}))
        rows.filter(lambda row: False).print()
    if "sink" in parts:
        historian.to_datastream().map(str).filter(lambda text: False).print()
    if "letters" in parts:
        for stream in (historian, counted):
            stream.dead_letters().map(str).print()


def main() -> None:
    directory = Path(os.environ["GROWING_JOB"])
    env = AgentsExecutionEnvironment.get_execution_environment(
        config={
            "local.checkpoint-interval": "300 ms",
            "local.state-dir": str(directory / "state"),
        }
    )
    parts = set(os.environ.get("GROWING_PARTS", "").split(","))
    build(env, directory, os.environ.get("GROWING_INPUT", "list"), parts)
    env.execute("grow")


if __name__ == "__main__":
    main()
