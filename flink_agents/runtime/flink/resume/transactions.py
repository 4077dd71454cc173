"""Relates the settings of checkpoints to the time that brokers keep transactions open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyflink.datastream import StreamExecutionEnvironment

from flink_agents.api.common.durations import duration_text
from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import KafkaTransactionError
from flink_agents.api.settings.local_jobs import Accept
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.internals.java_objects import field_of, field_value
from flink_agents.runtime.flink.resume import java

GUARD = "FlinkAgentsTransactionalSink"
"""The Java class of exactly-once sinks."""

_CHOSEN = "internal.flink-agents.chosen."
"""Prefix of copies of the settings that are chosen here; another value is the author's."""

TIMEOUT = "execution.checkpointing.timeout"
TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"


@dataclass(frozen=True)
class CheckpointTimes:
    """The times of a job's checkpoints, in milliseconds.

    Attributes:
        interval_ms: From the start of one to the start of the next.
        pause_ms: The shortest pause after one.
        timeout_ms: After which one is given up.
    """

    interval_ms: int
    pause_ms: int
    timeout_ms: int

    @property
    def spacing_ms(self) -> int:
        """The time between two checkpoints that complete at once."""
        return max(self.interval_ms, self.pause_ms)


def longest_checkpoint(times: CheckpointTimes, transaction_ms: int, *, is_set: bool) -> int:
    """Return the timeout of checkpoints with which a transaction outlasts them, in milliseconds.

    Args:
        times: The times of the checkpoints.
        transaction_ms: The time that brokers keep a transaction.
        is_set: True if the author has set the timeout of checkpoints: then it stays.

    Raises:
        KafkaTransactionError: The transaction can end before a checkpoint.
    """
    remaining_ms = transaction_ms - times.spacing_ms
    if not is_set and remaining_ms > 1:
        # The other half is for checkpoints that are late or fail.
        return min(times.timeout_ms, remaining_ms // 2)
    if is_set and times.timeout_ms < remaining_ms:
        return times.timeout_ms
    pause = f", a pause of {_text(times.pause_ms)}" if times.pause_ms > times.interval_ms else ""
    limit = f", which may take {_text(times.timeout_ms)} ({TIMEOUT})" if is_set else ""
    raise KafkaTransactionError(
        "the job takes checkpoints too rarely for an exactly-once sink: the brokers would drop its outputs "
        "before they are committed",
        expected=f"a complete checkpoint within {_text(transaction_ms)}, the transaction timeout of the sink "
        "(transaction_timeout=, and transaction.max.timeout.ms of the brokers)",
        found=f"checkpoints each {_text(times.interval_ms)} (execution.checkpointing.interval){pause}{limit}",
        fix="take checkpoints more often: execution.checkpointing.interval, or local.checkpoint-interval of "
        f"a local job with a name{f'; lower {TIMEOUT}' if is_set else ''}; or raise transaction_timeout= of "
        "the sink, and the limit of the brokers",
        where=authors_place(),
    )


def tolerable_failures(times: CheckpointTimes, timeout_ms: int, transaction_ms: int) -> int:
    """Return the number of failed checkpoints in a row after which outputs are in danger."""
    return max(0, (transaction_ms - timeout_ms) // max(times.spacing_ms, 1) - 1)


def bound_transactions(env: StreamExecutionEnvironment, config: Configuration | None = None) -> None:
    """Choose the settings with which no transaction of a job ends before its checkpoint.

    Args:
        env: PyFlink's environment, with checkpoints.
        config: Options of the job, if it has some.

    Raises:
        KafkaTransactionError: The author's settings contradict each other.
    """
    flink = flink_compat.configuration_of(env)
    # An earlier job of the environment may have chosen others.
    chosen = [key for key in (TIMEOUT, TOLERABLE) if key in flink and not is_set(flink, key)]
    java.remove_options(env, chosen)
    sinks = guarded_sinks(env)
    if not sinks:
        return
    transactions_ms = [int(field_value(sink, "timeoutMs")) for sink in sinks]
    transaction_ms = min(transactions_ms)
    checkpoints = env.get_checkpoint_config()
    times = CheckpointTimes(
        checkpoints.get_checkpoint_interval(),
        checkpoints.get_min_pause_between_checkpoints(),
        checkpoints.get_checkpoint_timeout(),
    )
    timeout_ms = longest_checkpoint(times, transaction_ms, is_set=is_set(flink, TIMEOUT))
    settings: dict[str, str] = {}
    if not is_set(flink, TIMEOUT):
        settings[TIMEOUT] = f"{timeout_ms} ms"
    is_local = flink.get("execution.target", "local") == "local"
    # At the end of a bounded input, checkpoints may expire: `Job` decides, and the sinks fail instead.
    if is_local and not is_set(flink, TOLERABLE):
        settings[TOLERABLE] = str(tolerable_failures(times, timeout_ms, transaction_ms))
    flink_compat.set_options(env, settings | {_CHOSEN + key: text for key, text in settings.items()})
    accepts_lost = config is not None and config.get(AgentOptions.ACCEPT) is Accept.LOST_OUTPUTS
    for sink, own_ms in zip(sinks, transactions_ms, strict=True):
        # Fields: each sink's class has its own loader, and Py4J finds methods by the name of the class.
        field_of(sink, "limitMs").set(sink, own_ms - timeout_ms)
        field_of(sink, "acceptsLost").set(sink, accepts_lost)


def is_set(flink: Mapping[str, str], key: str) -> bool:
    """Return True if the author of a job has set an option that :func:`bound_transactions` chooses."""
    return key in flink and flink[key] != flink.get(_CHOSEN + key)


def guarded_sinks(env: StreamExecutionEnvironment) -> list[Any]:
    """Return the exactly-once sinks of the job that is being built, as Java objects."""
    sinks: list[Any] = []
    for transformation in flink_compat.java_environment(env).getTransformations():
        if transformation.getClass().getSimpleName() == "SinkTransformation":
            sink = transformation.getSink()
            if sink.getClass().getSimpleName() == GUARD:
                sinks.append(sink)
    return sinks


def _text(milliseconds: int) -> str:
    return duration_text(milliseconds / 1000)
