"""Completes kafka-python: names missing codecs, closes producers, and sends headers without a value."""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import override

CODEC_LIBRARIES = {"snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}
"""The package that kafka-python needs for each codec, besides gzip."""


class UnreadableCodecError(Exception):
    """Records are compressed by a codec whose library is not installed.

    Args:
        place: Name of the topic.
        codec: Name of the codec, such as ``zstd``.

    Attributes:
        expected: The package that is needed.
        fix: The command that installs it.
    """

    def __init__(self, place: str, codec: str) -> None:
        library = CODEC_LIBRARIES.get(codec, codec)
        super().__init__(f"records of topic {place!r} are compressed by {codec}, and cannot be read here")
        self.expected = f"the package {library}"
        self.fix = (
            f"pip install {library}, in the workers of a cluster as well; or let the brokers keep records as "
            "they were sent: compression.type=producer"
        )


def check_codec(place: str, codec: str) -> None:
    """Check that the library of a codec is installed, if the codec needs one.

    Args:
        place: Name of the topic, for the error.
        codec: Value of its setting ``compression.type``.

    Raises:
        UnreadableCodecError: The library is missing.
    """
    from kafka import codec as codecs

    if codec in CODEC_LIBRARIES and not getattr(codecs, f"has_{codec}")():
        raise UnreadableCodecError(place, codec)


def consumer_class() -> Any:
    """Return kafka-python's consumer class, whose ``poll`` names the library that a codec needs.

    Raises:
        ImportError: kafka-python is not installed.
    """
    from kafka import KafkaConsumer

    return _codec_checking_class(KafkaConsumer)


@functools.cache
def _codec_checking_class(base: Any) -> Any:
    from kafka.errors import UnsupportedCodecError

    class CodecCheckingConsumer(base):
        """A consumer that raises :class:`UnreadableCodecError` from then on.

        After its own error, another ``poll`` of kafka-python never returns.
        """

        _unreadable: UnreadableCodecError | None = None

        def poll(self, *arguments: Any, **options: Any) -> Any:
            """Return records as kafka-python does."""
            if self._unreadable is not None:
                raise self._unreadable
            try:
                return super().poll(*arguments, **options)
            except UnsupportedCodecError as error:
                topics = sorted({partition.topic for partition in self.assignment()})
                codec = re.search(r"for (\w+) compression", str(error))
                name = str(error) if codec is None else codec.group(1)
                self._unreadable = UnreadableCodecError(", ".join(topics), name)
                raise self._unreadable from error

    return CodecCheckingConsumer


def close_producer(producer: Any, seconds: float) -> None:
    """Close a producer of kafka-python, and end its thread; waits for records in flight.

    ``KafkaProducer.close`` raises before it stops its thread if records are unsent after its timeout. The
    thread would then run as long as the process.

    Args:
        producer: The producer.
        seconds: Seconds to wait for acknowledgements.

    Raises:
        KafkaTimeoutError: Records were dropped.
    """
    try:
        producer.close(timeout=seconds)
    except BaseException:
        producer._sender.force_close()
        raise


class _HeaderWithoutValue(tuple[str, bytes]):
    """A header without a value that ``KafkaProducer.send`` accepts.

    It checks the type of each header by its index, and everything that writes headers unpacks them.
    """

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter((self[0], None))


def headers_to_send(pairs: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes]]:
    """Return headers in a form that ``KafkaProducer.send`` accepts, also those without a value.

    ``send`` rejects such headers, although the format of Kafka and the library's encoder have them. Only the
    code that adds up the length of headers has not.
    """
    from kafka.producer import producer_batch

    headers: list[tuple[str, bytes]] = []
    for name, content in pairs:
        if content is None:
            producer_batch.__dict__["len"] = _compressed_length
            headers.append(_HeaderWithoutValue((name, b"")))
        else:
            headers.append((name, content))
    return headers


def _compressed_length(value: Any) -> int:
    return 0 if value is None else builtins.len(value)
