"""Lets no output of an exactly-once sink get lost silently.

Brokers abort a transaction that is older than its timeout. Flink's connector does not look at their age: a
checkpoint that completes later moves the sources past outputs that no reader will see, and its committer only
logs that the brokers refuse. So a wrapper in Java replaces the sink:

- Its writer fails the task while the last complete checkpoint is from before the outputs in danger, so that
  the restart writes them again. Outputs are in danger if the checkpoint that commits them may end too late.
- Its committer fails the task if the brokers refuse a commit. After a restore, they also refuse commits that
  were made before (Kafka 4), so it asks them for the state of the transaction.

No settings of Flink can do that: checkpoints fail, expire, or do not start at all for many reasons.
"""

from __future__ import annotations

from pyflink.datastream import StreamExecutionEnvironment

from flink_agents.api.common.durations import duration_text
from flink_agents.api.errors import KafkaTransactionError
from flink_agents.runtime.flink.following import executions
from flink_agents.runtime.flink.internals.graph import wrap_sink
from flink_agents.runtime.flink.job_errors import JAVA_ERROR
from flink_agents.runtime.flink.resume.transactions import GUARD, bound_transactions

_FOUND = "{found}"

_SINK2 = "org.apache.flink.api.connector.sink2"
_KAFKA_SINK = "org.apache.flink.connector.kafka.sink"
_ADMIN = "org.apache.flink.kafka.shaded.org.apache.kafka.clients.admin"

JAVA = f"""
import java.io.IOException;
import java.lang.reflect.Field;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.Watermark;
import {_SINK2}.Committer;
import {_SINK2}.CommitterInitContext;
import {_SINK2}.CommittingSinkWriter;
import {_SINK2}.Sink;
import {_SINK2}.SinkWriter;
import {_SINK2}.StatefulSinkWriter;
import {_SINK2}.SupportsCommitter;
import {_SINK2}.SupportsWriterState;
import {_SINK2}.WriterInitContext;
import {_KAFKA_SINK}.KafkaCommittable;
import {_KAFKA_SINK}.KafkaSink;
import {_KAFKA_SINK}.KafkaWriterState;
import {_KAFKA_SINK}.internal.CheckpointTransaction;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.connector.sink2.SupportsPostCommitTopology;
import org.apache.flink.streaming.api.datastream.DataStream;
import {_ADMIN}.AdminClient;
import {_ADMIN}.TransactionDescription;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

public class {GUARD} implements Sink, SupportsCommitter, SupportsWriterState, SupportsPostCommitTopology {{
    private static final long serialVersionUID = 1L;

    private final Sink sink;
    private final long timeoutMs;
    private final String expired;
    private final String refused;
    private long limitMs;
    private boolean acceptsLost;

    public {GUARD}(Object[] arguments) {{
        this.sink = (Sink) arguments[0];
        this.timeoutMs = Long.parseLong((String) arguments[1]);
        this.expired = (String) arguments[2];
        this.refused = (String) arguments[3];
        this.limitMs = timeoutMs;
    }}

    public SinkWriter createWriter(WriterInitContext context) throws IOException {{
        return new {GUARD}Writer(sink.createWriter(context), limitMs, expired);
    }}

    public StatefulSinkWriter restoreWriter(WriterInitContext context, Collection states)
            throws IOException {{
        SinkWriter writer = ((SupportsWriterState) sink).restoreWriter(context, states);
        return new {GUARD}Writer(writer, limitMs, expired);
    }}

    public SimpleVersionedSerializer getWriterStateSerializer() {{
        return ((SupportsWriterState) sink).getWriterStateSerializer();
    }}

    public Committer createCommitter(CommitterInitContext context) throws IOException {{
        Committer committer = ((SupportsCommitter) sink).createCommitter(context);
        try {{
            Field client = KafkaSink.class.getDeclaredField("kafkaProducerConfig");
            client.setAccessible(true);
            return new {GUARD}Committer(committer, refused, acceptsLost, (Properties) client.get(sink));
        }} catch (ReflectiveOperationException error) {{
            throw new IOException(error);
        }}
    }}

    public SimpleVersionedSerializer getCommittableSerializer() {{
        return ((SupportsCommitter) sink).getCommittableSerializer();
    }}

    public void addPostCommitTopology(DataStream committables) {{
        ((SupportsPostCommitTopology) sink).addPostCommitTopology(committables);
    }}
}}

class {JAVA_ERROR} extends RuntimeException {{
    private static final long serialVersionUID = 1L;

    {JAVA_ERROR}(String message, Throwable cause) {{
        super(message, cause);
    }}
}}

class {GUARD}Writer implements StatefulSinkWriter, CommittingSinkWriter {{
    private static final long NONE = -1L;

    private final SinkWriter writer;
    private final long limitMs;
    private final String expired;
    private final Map preparedSince = new HashMap();
    private long since = NONE;

    {GUARD}Writer(SinkWriter writer, long limitMs, String expired) {{
        this.writer = writer;
        this.limitMs = limitMs;
        this.expired = expired;
    }}

    public void write(Object element, SinkWriter.Context context) throws IOException, InterruptedException {{
        if (since == NONE) {{
            since = System.currentTimeMillis();
        }} else {{
            check(since);
        }}
        writer.write(element, context);
    }}

    public void flush(boolean endOfInput) throws IOException, InterruptedException {{
        if (since != NONE) {{
            check(since);
        }}
        writer.flush(endOfInput);
    }}

    public void writeWatermark(Watermark watermark) throws IOException, InterruptedException {{
        writer.writeWatermark(watermark);
    }}

    public Collection prepareCommit() throws IOException, InterruptedException {{
        Collection committables = ((CommittingSinkWriter) writer).prepareCommit();
        for (Object committable : committables) {{
            preparedSince.put(((KafkaCommittable) committable).getTransactionalId(), Long.valueOf(since));
        }}
        since = NONE;
        return committables;
    }}

    public List snapshotState(long checkpointId) throws IOException {{
        List states = ((StatefulSinkWriter) writer).snapshotState(checkpointId);
        // Those of checkpoints that failed are not committed yet, either.
        Set open = new HashSet();
        for (Object state : states) {{
            for (Object each : ((KafkaWriterState) state).getPrecommittedTransactionalIds()) {{
                open.add(((CheckpointTransaction) each).getTransactionalId());
            }}
        }}
        preparedSince.keySet().retainAll(open);
        for (Object each : preparedSince.values()) {{
            check(((Long) each).longValue());
        }}
        return states;
    }}

    private void check(long since) {{
        long age = System.currentTimeMillis() - since;
        if (age > limitMs) {{
            throw new {JAVA_ERROR}(expired.replace("{_FOUND}", age / 1000.0 + " s"), null);
        }}
    }}

    public void close() throws Exception {{
        writer.close();
    }}
}}

class {GUARD}Committer implements Committer {{
    private final Committer committer;
    private final String refused;
    private final boolean acceptsLost;
    private final Properties client;

    {GUARD}Committer(Committer committer, String refused, boolean acceptsLost, Properties client) {{
        this.committer = committer;
        this.refused = refused;
        this.acceptsLost = acceptsLost;
        this.client = client;
    }}

    public void commit(Collection requests) throws IOException, InterruptedException {{
        List checked = new ArrayList();
        for (Object request : requests) {{
            checked.add(
                    new {GUARD}Request((Committer.CommitRequest) request, refused, acceptsLost, client));
        }}
        committer.commit(checked);
    }}

    public void close() throws Exception {{
        committer.close();
    }}
}}

class {GUARD}Request implements Committer.CommitRequest {{
    private static final Logger LOG = LoggerFactory.getLogger("flink_agents.kafka");
    private static final String COMMITTED = "committed";
    private static final long QUESTION_SECONDS = 30L;

    private final Committer.CommitRequest request;
    private final String refused;
    private final boolean acceptsLost;
    private final Properties client;

    {GUARD}Request(
            Committer.CommitRequest request, String refused, boolean acceptsLost, Properties client) {{
        this.request = request;
        this.refused = refused;
        this.acceptsLost = acceptsLost;
        this.client = client;
    }}

    public Object getCommittable() {{
        return request.getCommittable();
    }}

    public int getNumberOfRetries() {{
        return request.getNumberOfRetries();
    }}

    public void signalFailedWithKnownReason(Throwable reason) {{
        KafkaCommittable committable = (KafkaCommittable) request.getCommittable();
        String state = stateOf(committable);
        if (state.equals(COMMITTED)) {{
            request.signalAlreadyCommitted();
            return;
        }}
        String found = reason + " Transaction " + committable.getTransactionalId() + ": " + state;
        // One that this start has written has its producer; the others come from a checkpoint.
        if (acceptsLost && !committable.getProducer().isPresent()) {{
            LOG.warn("outputs of a former start are lost, as local.accept allows: {{}}", found);
            request.signalFailedWithKnownReason(reason);
            return;
        }}
        throw new {JAVA_ERROR}(refused.replace("{_FOUND}", found), reason);
    }}

    private String stateOf(KafkaCommittable committable) {{
        AdminClient admin = AdminClient.create(client);
        try {{
            String id = committable.getTransactionalId();
            TransactionDescription description =
                    (TransactionDescription) admin.describeTransactions(Collections.singleton(id))
                            .description(id)
                            .get(QUESTION_SECONDS, TimeUnit.SECONDS);
            // Brokers count the epoch up with a commit. A higher one is that of a later transaction.
            int later = description.producerEpoch() - committable.getEpoch();
            boolean isSame = description.producerId() == committable.getProducerId()
                    && (later == 0 || later == 1);
            String state = description.state().name();
            boolean isCommitted = state.equals("COMPLETE_COMMIT") || state.equals("PREPARE_COMMIT");
            return isSame && isCommitted ? COMMITTED : state + (isSame ? "" : " of a later one");
        }} catch (Exception error) {{
            return "its state is unknown: " + error;
        }} finally {{
            admin.close(Duration.ZERO);
        }}
    }}

    public void signalFailedWithUnknownReason(Throwable reason) {{
        // Brokers forget a producer that makes no transaction for transactional.id.expiration.ms.
        if (reason.getClass().getSimpleName().equals("InvalidPidMappingException")) {{
            signalFailedWithKnownReason(reason);
            return;
        }}
        request.signalFailedWithUnknownReason(reason);
    }}

    public void retryLater() {{
        request.retryLater();
    }}

    public void updateAndRetryLater(Object committable) {{
        request.updateAndRetryLater(committable);
    }}

    public void signalAlreadyCommitted() {{
        request.signalAlreadyCommitted();
    }}
}}
"""


def guard_transactions(
    env: StreamExecutionEnvironment, topic: str, timeout_ms: int, place: str | None
) -> None:
    """Wrap the newest sink of a job, so that the job fails instead of losing outputs.

    Args:
        env: PyFlink's environment.
        topic: The topic of the sink.
        timeout_ms: Its transaction timeout in milliseconds.
        place: The author's line with the sink; None if it is not known.
    """
    seconds = timeout_ms / 1000
    errors = (_expired_error(topic, seconds, place), _refused_error(topic, seconds, place))
    wrap_sink(env, GUARD, JAVA, [str(timeout_ms), *map(str, errors)]).add_to(env)
    if not executions.is_enlisted(env):
        # No job of this package starts it, which would do this at the start.
        bound_transactions(env)


def _expired_error(topic: str, seconds: float, place: str | None) -> KafkaTransactionError:
    return KafkaTransactionError(
        f"outputs of the sink of topic {topic!r} have waited too long for a checkpoint: the brokers would "
        "drop them",
        expected=f"a complete checkpoint before the brokers abort the transaction, {duration_text(seconds)} "
        "after its first output (transaction_timeout= of the sink)",
        found=f"an output that was written {_FOUND} ago, and no complete checkpoint since",
        fix="correct what lets checkpoints fail or take long (see Flink's log); take them more often "
        "(execution.checkpointing.interval); lower execution.checkpointing.timeout; or raise "
        "transaction_timeout=, and transaction.max.timeout.ms of the brokers. Nothing is lost: a restart "
        "from the last checkpoint writes these outputs again",
        where=place,
    )


def _refused_error(topic: str, seconds: float, place: str | None) -> KafkaTransactionError:
    return KafkaTransactionError(
        f"the brokers refuse to commit outputs of the sink of topic {topic!r}: readers will not see them",
        expected=f"a commit within {duration_text(seconds)} of the first output (transaction_timeout= of the "
        "sink), and no other job with the same transactional_id=",
        found=_FOUND,
        fix="start the job from an older checkpoint, which writes them again; or set local.accept to "
        "lost-outputs to continue without them. For the future, raise transaction_timeout=, and "
        "transaction.max.timeout.ms of the brokers",
        where=place,
    )
