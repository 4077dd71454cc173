"""Signals from a topic, and requests for approvals into one: a job's side of a ``KafkaApprovals``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from pydantic import AfterValidator
from pyflink.common import Types
from pyflink.datastream import DataStream

from flink_agents.api.environment import AgentsExecutionEnvironment
from flink_agents.api.events.approvals import ApprovalOutcome, ApprovalRequest
from flink_agents.api.events.signals import Signal
from flink_agents.api.lineage import TracedOutput
from flink_agents.connectors.kafka.records import KafkaRecord
from flink_agents.connectors.kafka.requests.desk import (
    OUTCOME,
    SignalReader,
    key_of,
    outcome_json,
    request_json,
)
from flink_agents.connectors.kafka.requests.signal_keys import KeyReader
from flink_agents.connectors.kafka.sink import kafka_sink
from flink_agents.connectors.kafka.source import KafkaStream, kafka_source
from flink_agents.connectors.kafka.subscription.loops import note_requests
from flink_agents.connectors.kafka.subscription.topics_read import Topics
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction
from flink_agents.runtime.flink.shipping.user_modules import MAIN, is_of_user


def kafka_signals(env: AgentsExecutionEnvironment, topics: Topics, **options: Any) -> KafkaStream:
    """Return the signals of topics, for ``with_signals``.

    A record is JSON with ``name``, ``value``, ``key``, ``id`` and ``wait``, as in :class:`Signal`. A key that
    JSON does not have is an object with its canonical text: ``{"canonical": "D2026-11-22"}``. Invalid records
    go to the dead letters of the source, unless ``on_error`` says otherwise.

    Args:
        env: The environment of the job.
        topics: A topic, several, or a pattern that the whole name of each has to match.
        **options: Options of :func:`kafka_source` except ``value`` and ``records``.

    Raises:
        KafkaStreamError: An argument is invalid.
    """
    modules = [
        name for name, module in list(sys.modules.items()) if name != MAIN and is_of_user(name, module)
    ]
    kind = Annotated[Signal, AfterValidator(SignalReader(KeyReader(tuple(sorted(modules)))))]
    settings: dict[str, Any] = {"out_of_orderness": None, **options}
    return kafka_source(env, topics, value=kind, **settings)


def approvals_to_kafka(approvals: DataStream, topic: str, **options: Any) -> Any:
    """Write approval requests of agents to a compacted topic, from which a ``KafkaApprovals`` lists them.

    A request that has ended becomes a record without a value, so that compaction removes it. A restart may
    write both again, with the same id.

    Args:
        approvals: The stream that ``approvals()`` of an applied agent returns.
        topic: The topic; several agents and jobs can share it.
        **options: Options of :func:`kafka_sink` except ``key``.

    Returns:
        The result of ``sink_to`` of the stream.

    Raises:
        KafkaStreamError: An argument is invalid.
    """
    parallelism = flink_compat.parallelism_of(approvals)
    records = approvals.map(ShippedFunction(_record_of), output_type=Types.PICKLED_BYTE_ARRAY())
    note_requests(approvals.get_execution_environment(), records)
    return records.set_parallelism(parallelism).sink_to(kafka_sink(topic, **options))


def _record_of(output: Any) -> KafkaRecord[bytes | None]:
    approval: ApprovalRequest | ApprovalOutcome = output.value if isinstance(output, TracedOutput) else output
    if isinstance(approval, ApprovalOutcome):
        # Clients that wait for the outcome read it here: compaction removes the record with its request.
        return KafkaRecord(None, key_of(approval.request), headers={OUTCOME: outcome_json(approval)})
    return KafkaRecord(request_json(approval), key_of(approval))
