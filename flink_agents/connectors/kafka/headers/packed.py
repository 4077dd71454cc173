"""All headers of a record in one, between Flink's connector and Python.

Flink's tables have a map of headers, which loses their order, repeated names and headers without a value.
An interceptor of the Kafka client packs and unpacks them in Java: for each header the length of its name, the
name, the length of its value (-1: no value), and the value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

NAME = "flink-agents-packed"
"""The header that has all others."""

INTERCEPTOR = "FlinkAgentsPackedHeaders"
"""The class of the interceptor."""

_KAFKA = "org.apache.flink.kafka.shaded.org.apache.kafka"

JAVA = f"""
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import {_KAFKA}.clients.consumer.ConsumerInterceptor;
import {_KAFKA}.clients.consumer.ConsumerRecord;
import {_KAFKA}.clients.consumer.ConsumerRecords;
import {_KAFKA}.clients.producer.ProducerInterceptor;
import {_KAFKA}.clients.producer.ProducerRecord;
import {_KAFKA}.clients.producer.RecordMetadata;
import {_KAFKA}.common.header.Header;
import {_KAFKA}.common.header.Headers;

public class {INTERCEPTOR} implements ConsumerInterceptor, ProducerInterceptor {{

    static final String NAME = "{NAME}";

    public ConsumerRecords onConsume(ConsumerRecords records) {{
        for (Object record : records) {{
            pack(((ConsumerRecord) record).headers());
        }}
        return records;
    }}

    public ProducerRecord onSend(ProducerRecord record) {{
        unpack(record.headers());
        return record;
    }}

    private static void pack(Headers headers) {{
        Header[] all = headers.toArray();
        if (all.length == 0) {{
            return;
        }}
        byte[][] names = new byte[all.length][];
        int size = 0;
        for (int i = 0; i < all.length; i++) {{
            names[i] = all[i].key().getBytes(StandardCharsets.UTF_8);
            size += 8 + names[i].length + (all[i].value() == null ? 0 : all[i].value().length);
        }}
        ByteBuffer packed = ByteBuffer.allocate(size);
        for (int i = 0; i < all.length; i++) {{
            packed.putInt(names[i].length).put(names[i]);
            byte[] value = all[i].value();
            packed.putInt(value == null ? -1 : value.length);
            if (value != null) {{
                packed.put(value);
            }}
        }}
        for (Header header : all) {{
            headers.remove(header.key());
        }}
        headers.add(NAME, packed.array());
    }}

    private static void unpack(Headers headers) {{
        Header header = headers.lastHeader(NAME);
        if (header == null) {{
            return;
        }}
        headers.remove(NAME);
        ByteBuffer packed = ByteBuffer.wrap(header.value());
        while (packed.hasRemaining()) {{
            String name = new String(bytes(packed, packed.getInt()), StandardCharsets.UTF_8);
            int length = packed.getInt();
            headers.add(name, length < 0 ? null : bytes(packed, length));
        }}
    }}

    private static byte[] bytes(ByteBuffer packed, int length) {{
        byte[] taken = new byte[length];
        packed.get(taken);
        return taken;
    }}

    public void onCommit(Map offsets) {{}}

    public void onAcknowledgement(RecordMetadata metadata, Exception exception) {{}}

    public void configure(Map configs) {{}}

    public void close() {{}}
}}
"""
"""The text of the interceptor."""

Pairs = tuple[tuple[str, bytes | None], ...]

_LENGTH = struct.Struct(">i")
_NO_VALUE = -1


def pack_headers(pairs: Iterable[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """Return a single header that contains all others; nothing if there are none."""
    parts: list[bytes] = []
    for name, content in pairs:
        encoded = name.encode()
        parts += (_LENGTH.pack(len(encoded)), encoded)
        if content is None:
            parts.append(_LENGTH.pack(_NO_VALUE))
        else:
            parts += (_LENGTH.pack(len(content)), content)
    return {NAME: b"".join(parts)} if parts else {}


def unpack_headers(headers: Mapping[str, bytes] | None) -> Pairs:
    """Return the headers in the single header that the connector has read; empty without it."""
    packed = (headers or {}).get(NAME)
    if packed is None:
        return ()
    pairs: list[tuple[str, bytes | None]] = []
    position = 0

    def read_bytes(length: int) -> bytes:
        nonlocal position
        position += length
        return packed[position - length : position]

    while position < len(packed):
        name = read_bytes(*_LENGTH.unpack(read_bytes(_LENGTH.size))).decode()
        (length,) = _LENGTH.unpack(read_bytes(_LENGTH.size))
        pairs.append((name, None if length == _NO_VALUE else read_bytes(length)))
    return tuple(pairs)
