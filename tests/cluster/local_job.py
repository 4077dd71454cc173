"""A job on the minicluster that runs in the background, to be cancelled, stopped or let fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from flink_agents import Agent, AgentsExecutionEnvironment
from flink_agents.runtime.flink.following.rest import ClusterRest, vertices_of
from tests.cluster.waiting import tail, wait_until

T = TypeVar("T")

WAIT_SECONDS = 120
LAST = -1


class LocalJob:
    """A job; ends with its ``with`` block.

    Args:
        env: The environment, with all streams of the job.
        beats: The file that its agent writes.
    """

    def __init__(self, env: AgentsExecutionEnvironment, beats: Path) -> None:
        self._beats = beats
        flink: Any = env.stream_env
        self._client = flink.execute_async("attempts")
        self._result = self._client.get_job_execution_result()

    def __enter__(self) -> LocalJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.ended():
            self.cancel()

    def ended(self) -> bool:
        """Whether the job is over, in whatever way."""
        return self._result.done()

    def cancel(self) -> float:
        """Cancel the job, and return after how many seconds it had ended."""
        start_seconds = time.monotonic()
        self._client.cancel()
        self._wait_for_end("of the cancelled job")
        return time.monotonic() - start_seconds

    def stop_with_savepoint(self, directory: Path, kind: str = "CANONICAL") -> str:
        """Stop the job without draining it, and return where the savepoint lies.

        Args:
            directory: Gets the savepoint.
            kind: Its format; ForSt only writes NATIVE.
        """
        from pyflink.java_gateway import get_gateway

        # PyFlink's own method calls one that Flink 2 does not have any more.
        java: Any = get_gateway().jvm
        savepoint_format = getattr(java.org.apache.flink.core.execution.SavepointFormatType, kind)
        savepoint = self._client._j_job_client.stopWithSavepoint(False, directory.as_uri(), savepoint_format)
        self.wait_for("the savepoint", savepoint.isDone, alive=False)
        self._wait_for_end("of the stopped job")
        return savepoint.get()

    def finished(self) -> list[str]:
        """Return the names of the tasks that have finished."""
        from flink_agents.runtime.flink.compat import rest_address

        cluster_rest = ClusterRest(rest_address(self._client._j_job_client))
        tasks = vertices_of(cluster_rest.get, str(self._client.get_job_id()))
        return [task["name"] for task in tasks if task["status"] == "FINISHED"]

    def wait_for(self, what: str, condition: Callable[[], T | None], alive: bool = True) -> T:
        """Wait for ``condition``; unless ``alive`` is false, fail at once where the job has ended."""

        def checked() -> T | None:
            result = condition()
            if alive and not result and self.ended():
                raise AssertionError(f"waited for {what}, but the job ended\n{self.report()}")
            return result

        return wait_until(what, checked, WAIT_SECONDS, self.report)

    def report(self) -> str:
        """How the job ended, if it has, and the last lines of its agent."""
        state = f"ended: {self._result.exception()}" if self.ended() else "goes on"
        return f"the job {state}\n{tail(self._beats)}"

    def _wait_for_end(self, what: str) -> None:
        self.wait_for(f"the end {what}", self.ended, alive=False)


def start_agent(
    env: AgentsExecutionEnvironment, agent: Agent, beats: Path, numbers: int, ends: bool = False
) -> LocalJob:
    """Start a job that gives the numbers from 0 to ``agent``, each as its own key.

    Args:
        env: The environment.
        agent: The agent.
        beats: The file that the agent writes.
        numbers: How many numbers.
        ends: Whether the input ends behind them. Else :data:`LAST` follows about a second later,
            and then the input is idle.
    """
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    def paced(number: int) -> list[int]:
        if number < numbers:
            return [number]
        time.sleep(0.01)
        return [LAST] if number == numbers + 100 else []

    flink: Any = env.stream_env
    source = NumberSequenceSource(0, numbers - 1 if ends else 10**12)
    stream = flink.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    stream = stream.uid("numbers").set_parallelism(1).flat_map(paced).uid("paced").set_parallelism(1)
    env.from_datastream(stream, lambda number: number).apply(agent).to_datastream().print()
    return LocalJob(env, beats)
