"""``kafka_sink``: writes a stream of values to a topic.

A Python function creates keys, values and headers; Flink's connector for tables writes them. PyFlink's own
``KafkaSink`` writes no headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pyflink.common import Row, TypeInformation, Types
from pyflink.datastream import DataStream, ProcessFunction, RuntimeContext, StreamExecutionEnvironment

from flink_agents.api.common.policies import DeadLetter
from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.api.lineage import TracedOutput
from flink_agents.connectors.kafka.headers import (
    PREFIX,
    agent_letter_headers,
    letter_headers,
    lineage_headers,
)
from flink_agents.connectors.kafka.records import KafkaDeadLetter, KafkaRecord
from flink_agents.connectors.kafka.tables import RAW_FORMATS, BrokerConnection
from flink_agents.connectors.kafka.values import write_value
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.resume.opening import SHORTEST_TIMEOUT, may_enable
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck
from flink_agents.runtime.flink.shipping.main_module import MainModule

Delivery = Literal["at-least-once", "exactly-once"]
KeyOf = Callable[[Any], Any]

TRANSACTION_TIMEOUT = timedelta(minutes=15)
"""The longest timeout that brokers allow by default; they reject Flink's own, an hour."""


def kafka_sink(
    topic: str,
    *,
    key: KeyOf | None = None,
    delivery: Delivery = "at-least-once",
    transactional_id: str | None = None,
    transaction_timeout: timedelta = TRANSACTION_TIMEOUT,
    name: str | None = None,
    jar: str | Path | None = None,
    properties: Mapping[str, str] | None = None,
    **client: Any,
) -> flink_compat.TableSink:
    """Return a sink for ``DataStream.sink_to`` that writes values to a topic.

    Strings and bytes are written as they are, None as a record without a value (a deletion), all else as
    JSON. The values may be :class:`KafkaRecord`, with their own key, headers and timestamp; outputs of an
    agent with ``lineage=True``, whose origin goes into headers; and dead letters of a source or of an agent:
    the record, or the input of the run, as it came, with headers that describe the error. A record has the
    timestamp of its value in the stream, else the time at which it is written.

    Args:
        topic: The topic.
        key: Returns the key of a value: a string, bytes, None, or anything that becomes JSON. Default: the
            key of a ``KafkaRecord``, else none.
        delivery: ``"at-least-once"`` loses nothing, and may repeat records that were written after the last
            checkpoint; with ``"exactly-once"``, consumers that read committed records only see each once, as
            soon as its checkpoint is complete.
        transactional_id: For exactly-once: the prefix of the transactions' names. Two jobs on the same
            brokers must not share it.
        transaction_timeout: For exactly-once: the time that brokers keep a transaction open. If the job is
            down for longer, records written before its checkpoint are lost.
        name: Name of the sink in the job, and part of its identity in savepoints. Default: the topic.
        jar: File of Flink's Kafka connector. Default: an existing one, else it is downloaded once.
        properties: Properties of Kafka's Java client, by its own names.
        **client: Options of kafka-python for the connection; see :func:`kafka_source`.

    Raises:
        KafkaStreamError: An argument is invalid.
    """
    _check(topic, delivery, transactional_id)
    connection = BrokerConnection(client, properties or {}, jar)
    options = {"connector": "kafka", "topic": topic, "sink.delivery-guarantee": delivery, **RAW_FORMATS}
    options |= connection.options()
    if transactional_id is not None:
        timeout = str(transaction_timeout // timedelta(milliseconds=1))
        options["sink.transactional-id-prefix"] = transactional_id
        options.setdefault("properties.transaction.timeout.ms", timeout)

    def insert(stream: DataStream) -> None:
        env = stream.get_execution_environment()
        if delivery == "exactly-once":
            _needs_checkpoints(env, topic, int(options["properties.transaction.timeout.ms"]))
        connection.bring_connector(env)
        _insert(stream, options, WriteRecords(key))

    label = name or topic
    return flink_compat.TableSink(insert, f"Kafka sink {label}", f"flink-agents-kafka-sink-{label}")


def _needs_checkpoints(env: StreamExecutionEnvironment, topic: str, timeout_ms: int) -> None:
    """Register that a job commits with checkpoints; a local job with a name enables them itself.

    Raises:
        KafkaStreamError: The job has no checkpoints.
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
    flink_compat.configure(env, {SHORTEST_TIMEOUT: str(shortest)})


def _check(topic: str, delivery: str, transactional_id: str | None) -> None:
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


def _insert(stream: DataStream, options: Mapping[str, str], write: WriteRecords) -> None:
    from pyflink.table import DataTypes, Schema, StreamTableEnvironment, TableDescriptor
    from pyflink.table.expressions import col

    rows = stream.process(write, output_type=_row_type())
    # Chained to another Python function, it would see the wrong timestamps.
    rows.start_new_chain().set_parallelism(flink_compat.parallelism_of(stream)).name(
        f"write {options['topic']}"
    )
    tables = StreamTableEnvironment.create(stream.get_execution_environment())
    headers = DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES())
    given = (
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
    table = tables.from_data_stream(rows, given).drop_columns(col("stamp"))
    statements = tables.create_statement_set()
    statements.add_insert(descriptor.build(), table)
    statements.attach_as_datastream()


def _row_type() -> TypeInformation:
    raw = Types.PRIMITIVE_ARRAY(Types.BYTE())
    return Types.ROW_NAMED(
        ["key", "value", "headers", "stamp"], [raw, raw, Types.MAP(Types.STRING(), raw), Types.LONG()]
    )


class WriteRecords(ProcessFunction):
    """Converts the values of a stream into rows for the connector.

    Args:
        key: Returns the key of a value, or None.
    """

    def __init__(self, key: KeyOf | None) -> None:
        self._code_check = CodeCheck.of_values([] if key is None else [key])
        self._main = MainModule()
        self._key = key

    def open(self, runtime_context: RuntimeContext) -> None:
        """Check that this worker has the code with which the job was built."""
        self._code_check.check()

    def process_element(self, value: Any, ctx: Any) -> Any:
        """Write one value."""
        record = as_record(value, self._key)
        at = ctx.timestamp() if record.timestamp is None else record.timestamp
        yield Row(
            write_value(record.key, "key"),
            write_value(record.value, "value"),
            dict(record.headers),
            at if at is not None and at >= 0 else None,
        )


def as_record(value: Any, key_of: KeyOf | None = None) -> KafkaRecord[Any]:
    """Return the record that a value of a stream becomes.

    Raises:
        KafkaValueError: A header is neither a string nor bytes.
    """
    headers: dict[str, Any] = {}
    traced = isinstance(value, TracedOutput)
    if isinstance(value, TracedOutput):
        headers, value = lineage_headers(value.lineage), value.value
    if isinstance(value, KafkaDeadLetter):
        headers |= letter_headers(value.error, value.error_type, value.record.place)
        value = value.record
    if isinstance(value, DeadLetter):
        headers, value = _letter(value)
    record: KafkaRecord[Any] = value if isinstance(value, KafkaRecord) else KafkaRecord(value)
    # An agent may emit its input record, whose headers name another run.
    own = {name: one for name, one in record.headers.items() if not (traced and name.startswith(PREFIX))}
    found = {name: _header(name, content) for name, content in {**own, **headers}.items()}
    key = record.key if key_of is None else key_of(record.value)
    return KafkaRecord(record.value, key, found, record.timestamp)


def _letter(letter: DeadLetter) -> tuple[dict[str, Any], Any]:
    """Return the headers of an agent's dead letter, and the input, which is written unchanged."""
    record = letter.record
    origin = record.place if isinstance(record, KafkaRecord) else None
    headers: dict[str, Any] = {**agent_letter_headers(letter, origin)}
    if isinstance(record, TracedOutput):
        headers, record = headers | lineage_headers(record.lineage), record.value
    return headers, record


def _header(name: str, content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes):
        return content
    raise KafkaValueError(
        f"the header {name!r} of a record cannot be written",
        expected="a string or bytes",
        found=type(content).__qualname__,
        fix="encode it yourself",
    )
