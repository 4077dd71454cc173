"""``kafka_source``: reads topics as a stream of typed values.

Flink's connector for tables reads the records: keys and values raw, headers and place as metadata. A
Python function parses the values. PyFlink's own ``KafkaSource`` has values only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from pyflink.common import Types
from pyflink.datastream import DataStream, OutputTag, ProcessFunction, RuntimeContext

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.environment import AgentsExecutionEnvironment
from flink_agents.api.errors import DeadLettersNotReadError, KafkaStreamError, KafkaValueError
from flink_agents.connectors.kafka.client import KafkaClientOptions
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.connectors.kafka.headers.packed import unpack_headers
from flink_agents.connectors.kafka.identities import check_unused, note_use
from flink_agents.connectors.kafka.records import KafkaDeadLetter, KafkaRecord
from flink_agents.connectors.kafka.sink import kafka_sink
from flink_agents.connectors.kafka.subscription.loops import DEAD_LETTERS, check_loops, note_source
from flink_agents.connectors.kafka.subscription.positions import (
    Start,
    Stop,
    check_positions,
    discovery_options,
    needs_brokers,
    start_options,
    stop_options,
)
from flink_agents.connectors.kafka.subscription.topics_read import (
    Topics,
    check_letters,
    reads_topic,
    topic_options,
)
from flink_agents.connectors.kafka.tables import RAW_FORMATS, BrokerConnection
from flink_agents.connectors.kafka.values import ValueReader
from flink_agents.connectors.kafka.wrapped_source import correct_source
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.resume.policy import recovery_path
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck
from flink_agents.runtime.flink.shipping.main_module import MainModule

OnRecordError = Literal["dead-letter", "fail", "ignore"]

ON_RECORD_ERROR: tuple[OnRecordError, ...] = ("dead-letter", "fail", "ignore")
MAX_DELAY = timedelta(days=99)
"""The longest interval that fits into SQL's two digits of days."""

_log = bounded_logger("flink_agents.kafka")


class KafkaStream(DataStream):
    """The records of topics as a PyFlink stream; made by :func:`kafka_source`.

    Args:
        stream: The stream of parsed values.
        name: Name of the source, for errors.
        policy: What happens to records that cannot be parsed: ``on_error`` of the source.
    """

    def __init__(self, stream: DataStream, name: str, policy: OnRecordError) -> None:
        super().__init__(flink_compat.java_stream(stream))
        self._name = name
        self._policy = policy
        self._read = False

    def dead_letters(self) -> DataStream:
        """Return the records that do not have the declared types, as a stream of :class:`KafkaDeadLetter`."""
        self._read = True
        return self.get_side_output(OutputTag(DEAD_LETTERS, Types.PICKLED_BYTE_ARRAY()))

    def check_dead_letters(self) -> None:
        """Check that something reads the dead letters. The job calls this before it starts.

        Raises:
            DeadLettersNotReadError: Nothing reads them.
        """
        if self._policy == "dead-letter" and not self._read:
            raise DeadLettersNotReadError(
                f"the {self._name} sends invalid records to its dead letters, and nothing reads them",
                fix="name a topic for them: dead_letters='...'; or consume the stream that dead_letters() "
                "returns; or choose on_error='fail' or 'ignore'",
            )


def kafka_source(
    env: AgentsExecutionEnvironment,
    topics: Topics,
    *,
    value: Any = dict,
    key: Any = str | None,
    records: bool = False,
    group: str | None = None,
    start: Start = "earliest",
    stop: Stop | None = None,
    dead_letters: str | None = None,
    on_error: OnRecordError = "dead-letter",
    out_of_orderness: timedelta | None = timedelta(seconds=5),
    idle_timeout: timedelta = timedelta(minutes=1),
    name: str | None = None,
    jar: str | Path | None = None,
    properties: Mapping[str, str] | None = None,
    **client: Unpack[KafkaClientOptions],
) -> KafkaStream:
    """Return the records of topics as a stream of typed values.

    Args:
        env: The environment of the job.
        topics: A topic, several, or a pattern that the whole name of each has to match.
        value: Type of the values: ``bytes`` and ``str`` as they are, any other Pydantic type from
            JSON. ``Order | None`` accepts records without a value (deletions) as well.
        key: Type of the keys, in the same way, for ``records=True``.
        records: Emit :class:`KafkaRecord`, with key, headers, timestamp and place, instead of the value.
        group: The consumer group for which offsets are committed with each checkpoint.
        start: Where a job without state starts: ``"earliest"``, ``"latest"``, ``"committed"`` (offsets of the
            group, else earliest), a time that has passed, or an offset for each partition. A job with state
            resumes from its state.
        stop: Where the stream ends, in the same way: ``"latest"`` is the end when it starts, before
            any open transaction. None: never.
        dead_letters: Topic for records that do not have the declared types.
        on_error: What happens to these records: ``"dead-letter"`` (that topic, or ``dead_letters()`` of the
            stream), ``"fail"`` the job, or ``"ignore"`` them except for a line in the log.
        out_of_orderness: Time by which a record of a partition may be older than an earlier one, for
            watermarks by the timestamps of the records. None: no watermarks.
        idle_timeout: Time without a record after which watermarks stop waiting for a partition.
        name: Name of the source in the job, and part of its identity in savepoints. Default: the topics.
        jar: File of Flink's Kafka connector. Default: an existing one, else it is downloaded once.
        properties: Properties of Kafka's Java client, by its own names. New partitions and topics are found
            every 5 minutes, or as often as ``partition.discovery.interval.ms`` says (0: never).
        **client: Options of kafka-python for the connection: ``bootstrap_servers``, ``security_protocol`` and
            others, as for the store ``kafka``.

    Raises:
        KafkaStreamError: An argument is invalid.
        KafkaConnectorError: Flink's connector is missing, and cannot be downloaded.
    """
    _check_error_policy(on_error, dead_letters)
    _check_out_of_orderness(out_of_orderness)
    names, options = topic_options(topics)
    check_letters(topics, dead_letters)
    # A pattern may match any number of topics.
    named = names if "topic" in options else []
    connection = BrokerConnection(client, properties or {}, jar)
    options |= (
        connection.options(reads=True) | start_options(start, named, group) | stop_options(stop, named, group)
    )
    options |= _group_options(group, properties or {}) | discovery_options(properties or {}) | RAW_FORMATS
    if out_of_orderness is not None:
        options["scan.watermark.idle-timeout"] = _milliseconds(idle_timeout)
    read_records = ReadRecords(
        ValueReader(value, "value"), ValueReader(key, "key"), records, on_error, topics
    )
    read_records.check()
    name = name or "+".join(names)
    label = f"Kafka source {name}"
    identity = f"flink-agents-kafka-source-{name}"
    fix = f"give one of them another name, such as name={f'{name}-2'!r}, and keep the name of the other"
    check_unused(env.stream_env, identity, f"Kafka sources named {name!r}", fix)
    connection.bring_connector(env.stream_env)
    rows = _read_rows(env, options, out_of_orderness)
    flink_compat.name_source(rows, label, identity)
    if stop is not None or group is not None:
        correct_source(env.stream_env, rows)
    values = rows.process(read_records, output_type=Types.PICKLED_BYTE_ARRAY())
    values.set_parallelism(flink_compat.parallelism_of(rows)).name(f"read {label}")
    note_use(env.stream_env, identity, values)
    note_source(env.stream_env, label, topics, options, values)
    stream = KafkaStream(values, label, on_error)
    if dead_letters is not None:
        # No topic has such a name, so no other sink has it.
        name = f"{name}:dead-letters"
        sink = kafka_sink(dead_letters, name=name, jar=jar, properties=properties, **client)
        stream.dead_letters().sink_to(sink)
    env.add_check(stream.check_dead_letters)
    env.add_check(partial(check_loops, env.stream_env))
    if needs_brokers(start, stop):
        check = partial(check_positions, topics, start, stop, group, client, properties or {})
        env.add_check(partial(_check_new_job, env, check))
    return stream


def _check_new_job(env: AgentsExecutionEnvironment, check: Callable[[], None]) -> None:
    """Call a check, unless the job restores state: then it continues where it was."""
    if recovery_path(flink_compat.configuration_of(env.stream_env)) is None:
        check()


def _check_error_policy(on_error: str, dead_letters: str | None) -> None:
    if on_error not in ON_RECORD_ERROR or (dead_letters is not None and on_error != "dead-letter"):
        raise KafkaStreamError(
            "a Kafka source cannot do this with records that it cannot read",
            expected=f"on_error: one of {', '.join(ON_RECORD_ERROR)}; dead_letters= only with the first",
            found=f"on_error={on_error!r}, dead_letters={dead_letters!r}",
            fix="correct on_error=, or omit it",
        )


def _check_out_of_orderness(delay: timedelta | None) -> None:
    if delay is not None and not timedelta() <= delay <= MAX_DELAY:
        raise KafkaStreamError(
            "a Kafka source cannot wait that long for older records",
            expected=f"out_of_orderness from 0 to {MAX_DELAY.days} days, or None for no watermarks",
            found=str(delay),
            fix="correct out_of_orderness=",
        )


def _group_options(group: str | None, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the consumer for a group; None: no offsets are committed.

    A group without committed offsets starts at the earliest ones. Records of a transaction are read once it
    is committed: Flink's default would read aborted ones as well.
    """
    defaults = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    if group is not None:
        defaults["group.id"] = group
    return {f"properties.{name}": text for name, text in defaults.items() if name not in properties}


def _read_rows(
    env: AgentsExecutionEnvironment, options: Mapping[str, str], out_of_orderness: timedelta | None
) -> DataStream:
    """Return a stream of rows: key, value, headers, topic, partition, offset; each with its timestamp."""
    from pyflink.table import DataTypes, Schema, TableDescriptor
    from pyflink.table.expressions import col

    time = DataTypes.TIMESTAMP_LTZ(3)
    plain = {"key": DataTypes.BYTES(), "value": DataTypes.BYTES()}
    place = {"topic": DataTypes.STRING(), "partition": DataTypes.INT(), "offset": DataTypes.BIGINT()}
    metadata = {"headers": DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES()), **place}
    read = Schema.new_builder()
    handed_on = Schema.new_builder()
    for name, kind in plain.items():
        read = read.column(name, kind)
        handed_on = handed_on.column(name, kind)
    for name, kind in metadata.items():
        read = read.column_by_metadata(name, kind, name, True)
        handed_on = handed_on.column(name, kind)
    read = read.column_by_metadata("timestamp", time, "timestamp", True)
    # PyFlink passes no instant to Python; it becomes the timestamp of the row.
    handed_on = handed_on.column_by_metadata("timestamp", time, "rowtime")
    if out_of_orderness is not None:
        read = read.watermark("timestamp", f"`timestamp` - {_sql_interval(out_of_orderness)}")
    descriptor = TableDescriptor.for_connector(options["connector"]).schema(read.build())
    for option, text in options.items():
        descriptor = descriptor.option(option, text)
    tables = env.table_env
    table = tables.from_descriptor(descriptor.build())
    columns = [col(name) for name in (*plain, *metadata, "timestamp")]
    return tables.to_changelog_stream(table.select(*columns), handed_on.build())


class ReadRecords(ProcessFunction):
    """Parses the connector's rows.

    Args:
        value: Parses values.
        key: Parses keys.
        records: True to emit :class:`KafkaRecord`, False to emit values alone.
        on_error: What happens to records that cannot be parsed.
        topics: The topics to read. After a restore, the connector also reads those of the savepoint.
    """

    def __init__(
        self,
        value: ValueReader,
        key: ValueReader,
        records: bool,
        on_error: OnRecordError,
        topics: Topics,
    ) -> None:
        # Unpickled in this order: the classes of the main script come before the readers that use them.
        self._code_check = CodeCheck.of_values([value.kind, key.kind])
        self._main = MainModule()
        self._value = value
        self._key = key
        self._records = records
        self._on_error = on_error
        self._topics = topics
        self._is_read: dict[str, bool] = {}
        self._tag: OutputTag | None = None

    def check(self) -> None:
        """Check that Pydantic supports the types of keys and values.

        Raises:
            KafkaStreamError: It does not.
        """
        self._value.check()
        self._key.check()

    def open(self, runtime_context: RuntimeContext) -> None:
        """Check that this worker has the code of the types with which the job was built."""
        self._code_check.check_modules()
        self._tag = OutputTag(DEAD_LETTERS, Types.PICKLED_BYTE_ARRAY())

    def process_element(self, value: Any, ctx: Any) -> Any:
        """Parse one row of the connector; yield its value, or a dead letter with its tag."""
        key, value_bytes, headers, topic, partition, offset = value
        if not (self._is_read.get(topic) or self._reads_topic(topic)):
            return
        timestamp: int | None = ctx.timestamp()
        try:
            output = self._value(value_bytes)
            if self._records:
                record_headers = KafkaHeaders(unpack_headers(headers))
                output = KafkaRecord(
                    output, self._key(key), record_headers, timestamp, topic, partition, offset
                )
        except KafkaValueError as error:
            if self._on_error == "fail":
                raise error.at(f"{topic}, partition {partition}, offset {offset}") from error
            _log.warning("a record of Kafka cannot be read: %s/%s/%s: %s", topic, partition, offset, error)
            if self._on_error == "dead-letter":
                record_headers = KafkaHeaders(unpack_headers(headers))
                record = KafkaRecord(value_bytes, key, record_headers, timestamp, topic, partition, offset)
                yield self._tag, KafkaDeadLetter(record, type(error.__cause__ or error).__name__, str(error))
            return
        yield output

    def _reads_topic(self, topic: str) -> bool:
        """Return True if the source reads a topic; log each topic once that it no longer reads."""
        if topic not in self._is_read:
            self._is_read[topic] = is_read = reads_topic(self._topics, topic)
            if not is_read:
                _log.warning(
                    "records of topic %r are left out: the source of the savepoint had this topic", topic
                )
        return self._is_read[topic]


def _sql_interval(duration: timedelta) -> str:
    """Return a duration as an SQL interval with the fields day to second."""
    minutes, millis = divmod(duration // timedelta(milliseconds=1), 60_000)
    days, minutes = divmod(minutes, 24 * 60)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{millis / 1000:06.3f}"
    return f"INTERVAL '{days} {clock}' DAY TO SECOND"


def _milliseconds(duration: timedelta) -> str:
    return f"{duration // timedelta(milliseconds=1)} ms"
