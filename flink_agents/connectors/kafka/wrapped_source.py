"""Corrects three things of Flink's Kafka source, with a wrapper in Java.

*A source that ends* also ends after a restore. The connector discovers partitions when it starts, and tells
its readers then that no others follow. After a restore, it finds no change, and returns before it tells them:
the readers wait forever (FLINK-33466, FLINK-31006). After a restore, the wrapper shows no partitions to the
discovery. For the connector that is a change, in which all known partitions are gone. It ignores these, and
tells its readers. Partitions that are new by then are not part of a source that ends.

*The end "latest"* is the last stable offset: the first record of a transaction that is open when the source
starts. The connector takes the offset after the last record, to which a source of committed records does not
come before all transactions end.

*Offsets of a group* are committed when their checkpoint is complete. The connector leaves the commit to the
thread that reads, which waits for a record for up to ten seconds, and so does the commit of an idle source.
The wrapper wakes it up.
"""

from __future__ import annotations

from pyflink.datastream import DataStream, StreamExecutionEnvironment

from flink_agents.runtime.flink.internals.graph import wrap_source

_SOURCE = "FlinkAgentsKafkaSource"

_KAFKA = "org.apache.flink.connector.kafka.source"
_CLIENT = "org.apache.flink.kafka.shaded.org.apache.kafka"

_JAVA = f"""
import java.io.Serializable;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.connector.base.source.reader.SourceReaderBase;
import org.apache.flink.connector.base.source.reader.fetcher.SplitFetcher;
import org.apache.flink.connector.base.source.reader.fetcher.SplitFetcherManager;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import {_KAFKA}.KafkaSource;
import {_KAFKA}.enumerator.KafkaSourceEnumState;
import {_KAFKA}.enumerator.KafkaSourceEnumerator;
import {_KAFKA}.enumerator.initializer.OffsetsInitializer;
import {_KAFKA}.enumerator.subscriber.KafkaSubscriber;
import {_CLIENT}.clients.admin.AdminClient;
import {_CLIENT}.clients.admin.ListOffsetsOptions;
import {_CLIENT}.clients.admin.ListOffsetsResult;
import {_CLIENT}.clients.admin.OffsetSpec;
import {_CLIENT}.clients.consumer.OffsetResetStrategy;
import {_CLIENT}.common.IsolationLevel;
import {_CLIENT}.common.TopicPartition;

public class {_SOURCE} implements Source, ResultTypeQueryable {{
    private static final long serialVersionUID = 1L;

    private final KafkaSource source;

    public {_SOURCE}(KafkaSource source) throws Exception {{
        this.source = source;
        Field end = KafkaSource.class.getDeclaredField("stoppingOffsetsInitializer");
        end.setAccessible(true);
        // The class is not public.
        boolean isLatest = "LatestOffsetsInitializer".equals(end.get(source).getClass().getSimpleName());
        if (isLatest && readsCommitted(source)) {{
            end.set(source, new {_SOURCE}CommittedEnd());
        }}
    }}

    private static boolean readsCommitted(KafkaSource source) throws Exception {{
        Field props = KafkaSource.class.getDeclaredField("props");
        props.setAccessible(true);
        return "read_committed".equals(((Properties) props.get(source)).getProperty("isolation.level"));
    }}

    public Boundedness getBoundedness() {{
        return source.getBoundedness();
    }}

    public SourceReader createReader(SourceReaderContext context) throws Exception {{
        return new {_SOURCE}Reader(source.createReader(context));
    }}

    public SplitEnumerator createEnumerator(SplitEnumeratorContext context) throws Exception {{
        return source.createEnumerator(context);
    }}

    public SplitEnumerator restoreEnumerator(SplitEnumeratorContext context, Object checkpoint)
            throws Exception {{
        KafkaSourceEnumState state = (KafkaSourceEnumState) checkpoint;
        SplitEnumerator enumerator = source.restoreEnumerator(context, state);
        if (source.getBoundedness() == Boundedness.BOUNDED && state.initialDiscoveryFinished()) {{
            Field subscriber = KafkaSourceEnumerator.class.getDeclaredField("subscriber");
            subscriber.setAccessible(true);
            subscriber.set(enumerator, new {_SOURCE}NoTopics());
        }}
        return enumerator;
    }}

    public SimpleVersionedSerializer getSplitSerializer() {{
        return source.getSplitSerializer();
    }}

    public SimpleVersionedSerializer getEnumeratorCheckpointSerializer() {{
        return source.getEnumeratorCheckpointSerializer();
    }}

    public TypeInformation getProducedType() {{
        return source.getProducedType();
    }}
}}

class {_SOURCE}Reader implements SourceReader {{
    private final SourceReader reader;
    private final Map fetchers;
    private final Method wakeUp;

    {_SOURCE}Reader(SourceReader reader) throws Exception {{
        this.reader = reader;
        Field manager = SourceReaderBase.class.getDeclaredField("splitFetcherManager");
        manager.setAccessible(true);
        Field fetchers = SplitFetcherManager.class.getDeclaredField("fetchers");
        fetchers.setAccessible(true);
        this.fetchers = (Map) fetchers.get(manager.get(reader));
        // Wakes it up while it waits for a record, and at no other time.
        this.wakeUp = SplitFetcher.class.getDeclaredMethod("wakeUp", new Class[] {{boolean.class}});
        this.wakeUp.setAccessible(true);
    }}

    public void notifyCheckpointComplete(long checkpoint) throws Exception {{
        reader.notifyCheckpointComplete(checkpoint);
        Object[] waiting = new ArrayList(fetchers.values()).toArray();
        for (int i = 0; i < waiting.length; i++) {{
            wakeUp.invoke(waiting[i], new Object[] {{Boolean.TRUE}});
        }}
    }}

    public void notifyCheckpointAborted(long checkpoint) throws Exception {{
        reader.notifyCheckpointAborted(checkpoint);
    }}

    public void start() {{
        reader.start();
    }}

    public InputStatus pollNext(ReaderOutput output) throws Exception {{
        return reader.pollNext(output);
    }}

    public List snapshotState(long checkpoint) {{
        return reader.snapshotState(checkpoint);
    }}

    public CompletableFuture isAvailable() {{
        return reader.isAvailable();
    }}

    public void addSplits(List splits) {{
        reader.addSplits(splits);
    }}

    public void notifyNoMoreSplits() {{
        reader.notifyNoMoreSplits();
    }}

    public void handleSourceEvents(SourceEvent event) {{
        reader.handleSourceEvents(event);
    }}

    public void pauseOrResumeSplits(Collection paused, Collection resumed) {{
        reader.pauseOrResumeSplits(paused, resumed);
    }}

    public void close() throws Exception {{
        reader.close();
    }}
}}

class {_SOURCE}CommittedEnd implements OffsetsInitializer {{
    private static final long serialVersionUID = 1L;

    public Map getPartitionOffsets(
            Collection partitions, OffsetsInitializer.PartitionOffsetsRetriever retriever) {{
        try {{
            Field client = retriever.getClass().getDeclaredField("adminClient");
            client.setAccessible(true);
            Object[] all = partitions.toArray();
            Map specs = new HashMap();
            for (int i = 0; i < all.length; i++) {{
                specs.put(all[i], OffsetSpec.latest());
            }}
            ListOffsetsOptions options = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
            ListOffsetsResult found = ((AdminClient) client.get(retriever)).listOffsets(specs, options);
            Map offsets = new HashMap();
            for (int i = 0; i < all.length; i++) {{
                TopicPartition partition = (TopicPartition) all[i];
                ListOffsetsResult.ListOffsetsResultInfo info =
                    (ListOffsetsResult.ListOffsetsResultInfo) found.partitionResult(partition).get();
                offsets.put(partition, Long.valueOf(info.offset()));
            }}
            return offsets;
        }} catch (Exception error) {{
            throw new RuntimeException("no end of the topics", error);
        }}
    }}

    public OffsetResetStrategy getAutoOffsetResetStrategy() {{
        return OffsetResetStrategy.LATEST;
    }}
}}

class {_SOURCE}NoTopics implements KafkaSubscriber {{
    private static final long serialVersionUID = 1L;

    public Set getSubscribedTopicPartitions(AdminClient client) {{
        return new HashSet();
    }}
}}
"""


def correct_source(env: StreamExecutionEnvironment, stream: DataStream) -> None:
    """Wrap the source of a stream in Java, with the corrections that the module describes.

    Args:
        env: PyFlink's environment.
        stream: The stream of the connector's table.
    """
    wrap_source(stream, _SOURCE, _JAVA).add_to(env)
