"""Merges a stream of signals into the inputs of an agent, before they are keyed.

An operator with two inputs would be of another kind, and a silent input would hold its watermark. So signals
travel among the inputs, each in a :class:`TaggedSignal`. Their first watermark marks their stream for the
valve of the union (``fast/end_valve.py``): it holds the end of the input, and nothing else of event time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedStream, KeySelector, MapFunction, RuntimeContext
from typing_extensions import override

from flink_agents.api.common.current import isolated
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.places import place_of
from flink_agents.api.errors import AgentConfigurationError, KeyEncodingError
from flink_agents.api.events.signals import Signal, TaggedSignal
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.fast import end_valve
from flink_agents.runtime.flink.fast.end_valve import MARK, SignalEnd
from flink_agents.runtime.flink.fast.internals import emit_watermark, replace_valve
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction
from flink_agents.runtime.serde.keys import KeyEncoder
from flink_agents.runtime.serde.raised_texts import innermost_place, text_of
from flink_agents.runtime.serde.typenames import shorten

_log = bounded_logger("flink_agents.signals")


class KeyOfEither:
    """Returns the key of an input, or of a signal among the inputs.

    Args:
        key_selector: Returns the key of an input.
    """

    def __init__(self, key_selector: Callable[[Any], Any]) -> None:
        self._key_selector = key_selector
        self.__module__ = getattr(key_selector, "__module__", None) or type(self).__module__

    def __call__(self, record: Any) -> Any:
        """Return the key."""
        return record.signal.key if type(record) is TaggedSignal else self._key_selector(record)


class KeysOfUnion(KeySelector):
    """Returns the keys of inputs and signals, in the task in which Flink merges their streams.

    Args:
        keys: Returns the key.
        end: The part that signals take in event time.
    """

    def __init__(self, keys: ShippedFunction, end: SignalEnd) -> None:
        self._keys = keys
        self._end = end

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        arguments = (self._end.mark, self._end.end, self._end.endless)
        try:
            replace_valve(runtime_context, end_valve.CLASS, end_valve.JAVA, *arguments)
        except Exception as error:  # Whatever another version raises.
            _log.warning("while all inputs are idle, signals end all windows: %s", error)

    @override
    def get_key(self, value: Any) -> Any:
        return self._keys(value)


class _Tag:
    """Turns a signal into an input.

    Args:
        key_selector: Returns its key; None if the signal has it.
    """

    def __init__(self, key_selector: Callable[[Any], Any] | None) -> None:
        self._key_selector = key_selector

    def __call__(self, signal: Any) -> TaggedSignal:
        if not isinstance(signal, Signal):
            raise AgentConfigurationError(
                "the stream of signals has a record that is not a signal",
                expected="an instance of flink_agents.Signal",
                found=f"{type(signal).__qualname__} {signal!r}"[:300],
                fix="map it: Signal(name=..., key=..., value=...)",
            )
        if self._key_selector is not None:
            signal = replace(signal, key=self._key_of(self._key_selector, signal))
        return TaggedSignal(signal)

    def _key_of(self, key_selector: Callable[[Any], Any], signal: Signal) -> Any:
        try:
            return isolated().run(key_selector, signal)
        except Exception as error:
            raise KeyEncodingError(
                f"the key selector of signals raised {type(error).__name__}: {text_of(error)}",
                expected="a key for each signal of the stream",
                found=f"signal {shorten(signal)}",
                fix="make the selector handle every signal, or filter the stream before with_signals",
                where=innermost_place(error) or place_of(key_selector),
            ) from error


class _Tagging(MapFunction):
    """Tags signals, and marks their stream.

    Args:
        key_selector: Returns the key of a signal; None if the signal has it.
    """

    def __init__(self, key_selector: Callable[[Any], Any] | None) -> None:
        self._tag = ShippedFunction(_Tag(key_selector), [] if key_selector is None else [key_selector])

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        try:
            emit_watermark(MARK)
        except Exception as error:  # Whatever another version raises.
            _log.warning("the stream of signals has no watermark, and holds back event time: %s", error)

    @override
    def map(self, value: Any) -> Any:
        return self._tag(value)


def join_signals(
    stream: DataStream, signals: DataStream, key_selector: Callable[[Any], Any] | None
) -> DataStream:
    """Return inputs and signals as one stream.

    Args:
        stream: The inputs.
        signals: The signals.
        key_selector: Returns the key of a signal; None if the signal has it.
    """
    # Flink forwards a union to its keys by forward channels: each part needs the same number of subtasks.
    pickled = Types.PICKLED_BYTE_ARRAY()
    parallelism = flink_compat.parallelism_of(stream)
    if stream.get_type() != pickled:
        stream = stream.map(ShippedFunction(_itself), output_type=pickled).set_parallelism(parallelism)
    if isinstance(signals, KeyedStream):
        signals = signals.map(ShippedFunction(_itself), output_type=pickled)
    # Watermarks or idleness of the signal stream are not those of the inputs.
    plain = signals.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks())
    tagged = plain.map(_Tagging(key_selector), output_type=pickled)
    signal_parallelism = flink_compat.parallelism_of(signals)
    if signal_parallelism != parallelism:
        # Flink would send signals to the subtasks in turn, and those of a key would arrive in any order.
        keys = tagged.set_parallelism(signal_parallelism).key_by(
            ShippedFunction(_KEYS), key_type=Types.STRING()
        )
        tagged = keys.map(ShippedFunction(_itself), output_type=pickled)
    return stream.union(tagged.set_parallelism(parallelism))


def _key_of(tagged: TaggedSignal) -> Any:
    return tagged.signal.key


_KEYS = KeyEncoder(_key_of)


def _itself(record: Any) -> Any:
    return record
