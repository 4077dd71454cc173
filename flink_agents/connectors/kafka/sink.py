"""``kafka_sink``: writes a stream of values to a topic.

A Python function creates keys, values and headers; Flink's connector for tables writes them. PyFlink's own
``KafkaSink`` writes no headers.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Unpack

from pyflink.common import Row, TypeInformation, Types
from pyflink.datastream import DataStream, ProcessFunction, RuntimeContext, StreamExecutionEnvironment

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.places import authors_place
from flink_agents.api.common.policies import DeadLetter
from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.api.events.signals import Signal
from flink_agents.api.lineage import TracedOutput
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.connectors.kafka.client import KafkaClientOptions, longest_transaction
from flink_agents.connectors.kafka.dead_letters.cutting import fit_letter
from flink_agents.connectors.kafka.headers import (
    PREFIX,
    TIMESTAMP,
    agent_letter_headers,
    letter_headers,
    lineage_headers,
)
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.connectors.kafka.headers.packed import pack_headers
from flink_agents.connectors.kafka.identities import check_unused, is_used, note_use
from flink_agents.connectors.kafka.records import KafkaDeadLetter, KafkaRecord
from flink_agents.connectors.kafka.requests.desk import message_key, signal_json
from flink_agents.connectors.kafka.sinks.record_sizes import SizeLimit, request_option, size_limit
from flink_agents.connectors.kafka.sinks.transactions import guard_transactions
from flink_agents.connectors.kafka.subscription.loops import note_sink
from flink_agents.connectors.kafka.tables import RAW_FORMATS, BrokerConnection
from flink_agents.connectors.kafka.values import write_value
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.resume.opening import SHORTEST_TIMEOUT, may_enable
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck
from flink_agents.runtime.flink.shipping.main_module import MainModule
from flink_agents.runtime.serde.typenames import shorten

Delivery = Literal["at-least-once", "exactly-once"]
KeyOf = Callable[[Any], Any]

_IDENTITY = "flink-agents-kafka-sink-"

TIMEOUT_OPTION = "properties.transaction.timeout.ms"

MAX_AHEAD = timedelta(minutes=59)
"""Brokers reject timestamps an hour ahead of their clock, by default; their clock may be another one."""

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST_MS = timedelta.max // _MILLISECOND

_log = bounded_logger("flink_agents.kafka")


def kafka_sink(
    topic: str,
    *,
    key: KeyOf | None = None,
    delivery: Delivery = "at-least-once",
    transactional_id: str | None = None,
    transaction_timeout: timedelta | None = None,
    max_ahead: timedelta | None = MAX_AHEAD,
    max_behind: timedelta | None = None,
    name: str | None = None,
    jar: str | Path | None = None,
    properties: Mapping[str, str] | None = None,
    **client: Unpack[KafkaClientOptions],
) -> flink_compat.TableSink:
    """Return a sink for ``DataStream.sink_to`` that writes values to a topic.

    Strings and bytes are written as they are, None as a record without a value (a deletion), all else as
    JSON. The values may be :class:`KafkaRecord`, with their own key, headers and timestamp; outputs of an
    agent with ``lineage=True``, whose origin goes into headers; and dead letters of a source or of an agent:
    the record, or the input of the run, as it came, with headers that describe the error; its value is cut
    if the topic does not allow that size. A record has the timestamp of its value in the stream, else the
    time at which it is written.

    Args:
        topic: The topic.
        key: Returns the key of a value: a string, bytes, None, or anything that becomes JSON. Default: the
            key of a ``KafkaRecord``, else none. A deletion, ``KafkaRecord(None, key=...)``, has its own key.
        delivery: ``"at-least-once"`` loses nothing, and may repeat records that were written after the last
            checkpoint; with ``"exactly-once"``, consumers that read committed records only see each once, as
            soon as its checkpoint is complete.
        transactional_id: For exactly-once: the prefix of the transactions' names. Two jobs on the same
            brokers must not share it.
        transaction_timeout: For exactly-once: the time that brokers keep a transaction open. If checkpoints
            take longer, the job fails, and a restart writes the records again. If the job is down for longer,
            records written before its checkpoint are lost. Default: the longest time that the brokers allow.
        max_ahead: A record with a timestamp further ahead of the clock is written as of now, since brokers
            reject it (``message.timestamp.after.max.ms``, an hour by default). The header
            ``flink-agents-timestamp`` has its timestamp, and the log names topic, sink and value. None: no
            limit.
        max_behind: The same for timestamps of the past (``message.timestamp.before.max.ms``). Default: no
            limit.
        name: Name of the sink in the job, and part of its identity in savepoints. Default: the topic.
        jar: File of Flink's Kafka connector. Default: an existing one, else it is downloaded once.
        properties: Properties of Kafka's Java client, by its own names.
        **client: Options of kafka-python for the connection; see :func:`kafka_source`.

    Raises:
        KafkaStreamError: An argument is invalid.
    """
    _check_arguments(topic, delivery, transactional_id)
    place = authors_place()
    connection = BrokerConnection(client, properties or {}, jar)
    options = {"connector": "kafka", "topic": topic, "sink.delivery-guarantee": delivery, **RAW_FORMATS}
    options |= connection.options(reads=False)
    if transactional_id is not None:
        options["sink.transactional-id-prefix"] = transactional_id

    def insert(stream: DataStream) -> tuple[str, str]:
        env = stream.get_execution_environment()
        label = _sink_name(env, topic, name, delivery)
        identity = f"{_IDENTITY}{label}"
        transactions = f"{_IDENTITY}transactions:{transactional_id}"
        if delivery == "exactly-once":
            fix = f"give each its own: transactional_id={f'{transactional_id}-2'!r}"
            check_unused(env, transactions, f"Kafka sinks with transactional_id={transactional_id!r}", fix)
            if TIMEOUT_OPTION not in options:
                timeout = transaction_timeout or longest_transaction(connection.client, connection.properties)
                options[TIMEOUT_OPTION] = str(timeout // _MILLISECOND)
            _require_checkpoints(env, topic, int(options[TIMEOUT_OPTION]))
        connection.bring_connector(env)
        limits = TimestampLimits(topic, label, max_ahead, max_behind)
        size = size_limit(topic, connection.client, connection.properties, place)
        request = request_option(size, connection.properties)
        options.update({f"properties.{name}": text for name, text in request.items()})
        rows = _insert_rows(stream, options, WriteRecords(key, limits, size))
        if delivery == "exactly-once":
            guard_transactions(env, topic, int(options[TIMEOUT_OPTION]), place)
        for used_identity in (identity, transactions):
            note_use(env, used_identity, rows)
        note_sink(env, topic, options, stream, rows)
        return f"Kafka sink {label}", identity

    return flink_compat.TableSink(insert)


def _sink_name(env: StreamExecutionEnvironment, topic: str, name: str | None, delivery: Delivery) -> str:
    """Return the name of a sink in its job.

    A sink that writes at least once has no state, so a further one of its topic is numbered.

    Raises:
        KafkaStreamError: Another sink has the name.
    """
    label = name or topic
    if name is None and delivery == "at-least-once":
        numbers = itertools.count(2)
        while is_used(env, f"{_IDENTITY}{label}"):
            # No topic has such a name.
            label = f"{topic}#{next(numbers)}"
    fix = f"give one of them another name, such as name={f'{label}-2'!r}, and keep the name of the other"
    check_unused(env, f"{_IDENTITY}{label}", f"Kafka sinks named {label!r}", fix)
    return label


def _require_checkpoints(env: StreamExecutionEnvironment, topic: str, timeout_ms: int) -> None:
    """Check that the job takes checkpoints, and record the shortest transaction timeout of its sinks.

    A local job with a name enables checkpoints later, so it passes.

    Args:
        env: PyFlink's environment.
        topic: Topic of the sink, for the error.
        timeout_ms: The transaction timeout of the sink in milliseconds.

    Raises:
        KafkaStreamError: The job takes no checkpoints.
    """
    flink = flink_compat.configuration_of(env)
    if not (env.get_checkpoint_config().is_checkpointing_enabled() or may_enable(env)):
        raise KafkaStreamError(
            f"the sink of topic {topic!r} commits with checkpoints, and the job takes none",
            expected="checkpoints for delivery='exactly-once'",
            found="no checkpoints at sink_to",
            fix="call enable_checkpointing(...) of PyFlink's environment before, or write at-least-once",
        )
    shortest = min(timeout_ms, int(flink.get(SHORTEST_TIMEOUT, timeout_ms)))
    flink_compat.set_options(env, {SHORTEST_TIMEOUT: str(shortest)})


def _check_arguments(topic: str, delivery: str, transactional_id: str | None) -> None:
    if not isinstance(topic, str) or not topic:
        raise KafkaStreamError(
            "a Kafka sink writes to one topic",
            expected="its name",
            found=repr(topic),
            fix="create a sink for each topic",
        )
    if delivery not in ("at-least-once", "exactly-once"):
        raise KafkaStreamError(
            f"a Kafka sink cannot deliver {delivery!r}",
            expected="'at-least-once' or 'exactly-once'",
            found=repr(delivery),
            fix="correct delivery=",
        )
    if (delivery == "exactly-once") != (transactional_id is not None):
        raise KafkaStreamError(
            f"the sink of topic {topic!r} has no name for its transactions, or an unnecessary one",
            expected="a transactional_id for delivery='exactly-once', and only for that",
            found=f"delivery={delivery!r}, transactional_id={transactional_id!r}",
            fix="name the job: transactional_id='orders-job'; no other job on these brokers may use it",
        )


def _insert_rows(stream: DataStream, options: Mapping[str, str], write: WriteRecords) -> DataStream:
    """Insert a stream into the connector's table, and return the stream of rows that it gets."""
    from pyflink.table import DataTypes, Schema, StreamTableEnvironment, TableDescriptor
    from pyflink.table.expressions import col

    rows = stream.process(write, output_type=_row_type())
    # Chained to another Python function, it would see the wrong timestamps.
    rows.start_new_chain().set_parallelism(flink_compat.parallelism_of(stream)).name(
        f"write {options['topic']}"
    )
    tables = StreamTableEnvironment.create(stream.get_execution_environment())
    headers = DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES())
    input_schema = (
        Schema.new_builder()
        .column("key", DataTypes.BYTES())
        .column("value", DataTypes.BYTES())
        .column("headers", headers)
        .column("stamp", DataTypes.BIGINT())
        .column_by_expression("timestamp", "TO_TIMESTAMP_LTZ(stamp, 3)")
        .build()
    )
    written = (
        Schema.new_builder()
        .column("key", DataTypes.BYTES())
        .column("value", DataTypes.BYTES())
        .column_by_metadata("headers", headers)
        .column_by_metadata("timestamp", DataTypes.TIMESTAMP_LTZ(3))
        .build()
    )
    descriptor = TableDescriptor.for_connector(options["connector"]).schema(written)
    for option, text in options.items():
        descriptor = descriptor.option(option, text)
    table = tables.from_data_stream(rows, input_schema).drop_columns(col("stamp"))
    statements = tables.create_statement_set()
    statements.add_insert(descriptor.build(), table)
    statements.attach_as_datastream()
    return rows


def _row_type() -> TypeInformation:
    raw = Types.PRIMITIVE_ARRAY(Types.BYTE())
    return Types.ROW_NAMED(
        ["key", "value", "headers", "stamp"], [raw, raw, Types.MAP(Types.STRING(), raw), Types.LONG()]
    )


class TimestampLimits:
    """Replaces timestamps that the brokers of a topic would reject.

    Args:
        topic: The topic.
        sink: Name of the sink, for the log.
        max_ahead: How far a timestamp may be ahead of the clock; None for no limit.
        max_behind: How far it may be behind the clock; None for no limit.
    """

    def __init__(
        self, topic: str, sink: str, max_ahead: timedelta | None, max_behind: timedelta | None
    ) -> None:
        self._topic = topic
        self._sink = sink
        self._ahead_ms = math.inf if max_ahead is None else max_ahead // _MILLISECOND
        self._behind_ms = math.inf if max_behind is None else max_behind // _MILLISECOND
        self._replaced = 0

    def limit_timestamp(self, record: KafkaRecord[Any]) -> KafkaRecord[Any]:
        """Return the record, with a timestamp of None if the brokers would reject its own.

        The replaced timestamp goes into a header. The 1st, 2nd, 4th, 8th... replacement is logged.
        """
        timestamp = record.timestamp
        # Flink marks a record without a timestamp by a negative one.
        if timestamp is None or timestamp < 0:
            return replace(record, timestamp=None)
        ahead_ms = timestamp - int(time.time() * 1000)
        if -self._behind_ms <= ahead_ms <= self._ahead_ms:
            return record
        self._replaced += 1
        # Logs of a job whose clock is wrong stay short: records 1, 2, 4, 8 and so on.
        if self._replaced & (self._replaced - 1) == 0:
            _log.warning(
                "the sink %r of topic %r writes a record as of now, since its timestamp %s is %s %s the "
                "clock; brokers reject it (max_ahead=, max_behind=); record %s of this kind: %s",
                self._sink,
                self._topic,
                timestamp,
                timedelta(milliseconds=abs(ahead_ms)) if abs(ahead_ms) < _LONGEST_MS else "far",
                "ahead of" if ahead_ms > 0 else "behind",
                self._replaced,
                shorten(record.value),
            )
        headers = KafkaHeaders.of(record.headers) | {TIMESTAMP: str(timestamp).encode()}
        return replace(record, timestamp=None, headers=headers)


class WriteRecords(ProcessFunction):
    """Converts the values of a stream into rows for the connector.

    Args:
        key: Returns the key of a value. None: the key of a ``KafkaRecord``.
        limits: Replaces timestamps that brokers would reject.
        size: Maximum size of a record; None if it is not checked.
    """

    def __init__(self, key: KeyOf | None, limits: TimestampLimits, size: SizeLimit | None = None) -> None:
        self._code_check = CodeCheck.of_values([] if key is None else [key])
        self._main = MainModule()
        self._key = key
        self._limits = limits
        self._size = size

    def open(self, runtime_context: RuntimeContext) -> None:
        """Check that this worker has the code with which the job was built."""
        self._code_check.check_modules()

    def process_element(self, value: Any, ctx: Any) -> Any:
        """Yield the row of one value for the connector: key, value, packed headers, timestamp."""
        record = as_record(value, self._key)
        if record.timestamp is None:
            record = replace(record, timestamp=ctx.timestamp())
        record = self._limits.limit_timestamp(record)
        key = write_value(record.key, "key")
        value_bytes = write_value(record.value, "value")
        headers = KafkaHeaders.of(record.headers)
        if self._size is not None:
            if isinstance(value, KafkaDeadLetter | DeadLetter):
                key, value_bytes, headers = fit_letter(key, value_bytes, headers, self._size)
            self._size.check_record(key, value_bytes, headers.pairs)
        yield Row(key, value_bytes, pack_headers(headers.pairs), record.timestamp)


def as_record(value: Any, key_of: KeyOf | None = None) -> KafkaRecord[Any]:
    """Return the record that a sink writes for a value of its stream.

    Origins of outputs and errors of dead letters become headers. Signals get their key and form.

    Args:
        value: The value, as :func:`kafka_sink` describes.
        key_of: Returns the key of a value. None: the key of a ``KafkaRecord``, else no key.

    Raises:
        KafkaValueError: A header is neither a string nor bytes, nor None; or a deletion has no key.
    """
    added: dict[str, Any] = {}
    traced = isinstance(value, TracedOutput)
    if isinstance(value, TracedOutput):
        added = lineage_headers(value.lineage)
        value = value.value
    if isinstance(value, KafkaDeadLetter):
        added |= letter_headers(value.error, value.error_type, value.record.place)
        value = value.record
    if isinstance(value, DeadLetter):
        added, value = _split_letter(value)
    record: KafkaRecord[Any] = value if isinstance(value, KafkaRecord) else KafkaRecord(value)
    pairs = KafkaHeaders.of(record.headers).pairs
    # An agent may emit its input record, whose headers name another run.
    header_pairs = [pair for pair in pairs if not (traced and pair[0].startswith(PREFIX))]
    headers = (
        KafkaHeaders(tuple((name, _encode_header(name, content)) for name, content in header_pairs)) | added
    )
    key = _key_of(record, key_of)
    content = record.value
    if isinstance(content, Signal):
        # As KafkaApprovals.send writes it: a reader gets the same key.
        key = message_key(content) if key is None else key
        content = signal_json(content)
    return KafkaRecord(content, key, headers, record.timestamp)


def _key_of(record: KafkaRecord[Any], key_of: KeyOf | None) -> Any:
    """Return the key of a record: its own, or what ``key_of`` returns for its value.

    Raises:
        KafkaValueError: ``key_of`` raised for a deletion, which has no value.
    """
    if key_of is None or (record.value is None and record.key is not None):
        # A deletion has no value that has a key.
        return record.key
    try:
        return key_of(record.value)
    except Exception as error:
        if record.value is not None:
            raise
        raise KafkaValueError(
            f"key= of a sink raised {type(error).__name__} for a deletion, which has no value",
            expected="a deletion with its key",
            found="None",
            fix="emit KafkaRecord(None, key=...); or let key= return a key for None",
        ) from error


def _split_letter(letter: DeadLetter) -> tuple[dict[str, Any], Any]:
    """Return the headers of an agent's dead letter, and the failed input, which is written unchanged."""
    record = letter.record
    origin = record.place if isinstance(record, KafkaRecord) else None
    headers: dict[str, Any] = {**agent_letter_headers(letter, origin)}
    if isinstance(record, TracedOutput):
        headers = headers | lineage_headers(record.lineage)
        record = record.value
    return headers, record


def _encode_header(name: str, content: Any) -> bytes | None:
    if isinstance(content, str):
        return sendable(content).encode()
    if content is None or isinstance(content, bytes):
        return content
    raise KafkaValueError(
        f"the header {name!r} of a record cannot be written",
        expected="a string, bytes, or None",
        found=type(content).__qualname__,
        fix="encode it yourself",
    )
