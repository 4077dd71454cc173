"""Merges a stream of signals into the inputs of an agent, before they are keyed.

An operator with two inputs would be of another kind, and a silent input would hold its watermark. So signals
travel among the inputs, each in a :class:`TaggedSignal`. Their first watermark marks their stream for the
valve of the union: it holds the end of the input, and nothing else of event time.

Flink has no stream that takes no part in event time but holds back its end. If the other inputs are idle, the
watermark of an active stream passes. An idle stream is ignored, also when the other inputs end. So a valve in
Java knows such channels by their first watermark, their *mark*, and regards them as idle. When the inputs
have reached the last watermark, it emits an earlier one instead, until the marked channels end too. Flink
compiles its text on the worker, as it does for the queries of its tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from flink_agents.runtime.flink.internals.task import emit_watermark, replace_valve
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction, unchanged
from flink_agents.runtime.serde.keys import KeyEncoder
from flink_agents.runtime.serde.raised_texts import innermost_place, text_of
from flink_agents.runtime.serde.typenames import shorten

_log = bounded_logger("flink_agents.signals")


class KeyOfEither:
    """Returns the key of an input, or of a signal among the inputs.

    Args:
        key_selector: Returns the key of an input; signals have theirs.
    """

    def __init__(self, key_selector: Callable[[Any], Any]) -> None:
        self._key_selector = key_selector
        self.__module__ = getattr(key_selector, "__module__", None) or type(self).__module__

    def __call__(self, record: Any) -> Any:
        """Return the key of ``record``, an input or a :class:`TaggedSignal`."""
        return record.signal.key if type(record) is TaggedSignal else self._key_selector(record)


class KeysOfUnion(KeySelector):
    """Returns the keys of inputs and signals, in the task in which Flink merges their streams.

    Args:
        keys: Returns the canonical string of a record's key.
        end: The watermarks with which signals hold back the end of the inputs.
    """

    def __init__(self, keys: ShippedFunction, end: SignalEnd) -> None:
        self._keys = keys
        self._end = end

    @override
    def open(self, runtime_context: RuntimeContext) -> None:
        arguments = (self._end.mark, self._end.end, self._end.endless)
        try:
            replace_valve(runtime_context, CLASS, JAVA, *arguments)
        except Exception as error:  # Whatever another version raises.
            _log.warning("while all inputs are idle, signals end all windows: %s", error)

    @override
    def get_key(self, value: Any) -> Any:
        return self._keys(value)


class _Tag:
    """Converts a record of the stream of signals to an input.

    Args:
        key_selector: Returns the key of a signal; None if the signal has it.
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
    """Converts signals to inputs, and marks their stream with a first watermark.

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
        stream = stream.map(ShippedFunction(unchanged), output_type=pickled).set_parallelism(parallelism)
    if isinstance(signals, KeyedStream):
        signals = signals.map(ShippedFunction(unchanged), output_type=pickled)
    # Watermarks or idleness of the signal stream are not those of the inputs.
    plain = signals.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks())
    tagged = plain.map(_Tagging(key_selector), output_type=pickled)
    signal_parallelism = flink_compat.parallelism_of(signals)
    if signal_parallelism != parallelism:
        # Flink would send signals to the subtasks in turn, and those of a key would arrive in any order.
        keys = tagged.set_parallelism(signal_parallelism).key_by(
            ShippedFunction(_KEYS), key_type=Types.STRING()
        )
        tagged = keys.map(ShippedFunction(unchanged), output_type=pickled)
    return stream.union(tagged.set_parallelism(parallelism))


def _key_of(tagged: TaggedSignal) -> Any:
    return tagged.signal.key


_KEYS = KeyEncoder(_key_of)


FAR = 2**63 - 2**45
"""The watermark when only inputs have ended: after any of them, and before the timers at the end."""

MARK = FAR + 1
"""The first watermark of signals, which no operator emits otherwise."""


@dataclass(frozen=True)
class SignalEnd:
    """The watermarks with which a stream of signals holds back the end of an agent's inputs.

    Args:
        endless: True if the inputs do not end by themselves.

    Attributes:
        mark: The first watermark of signals.
        end: The watermark when the inputs have ended, and signals have not.
    """

    endless: bool
    mark: int = MARK
    end: int = FAR


CLASS = "FlinkAgentsEndValve"
"""The Java class of the valve."""

JAVA = """
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.io.PushingAsyncDataInput.DataOutput;
import org.apache.flink.streaming.runtime.streamrecord.LatencyMarker;
import org.apache.flink.streaming.runtime.streamrecord.RecordAttributes;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.runtime.event.WatermarkEvent;
import org.apache.flink.streaming.runtime.watermarkstatus.StatusWatermarkValve;
import org.apache.flink.streaming.runtime.watermarkstatus.WatermarkStatus;

public class FlinkAgentsEndValve extends StatusWatermarkValve implements DataOutput {
    private static final long LAST = Long.MAX_VALUE;
    private static final int INPUT = 0;
    private static final int MARKED = 1;
    private static final int ENDED = 2;

    private final long mark;
    private final long end;
    private final boolean endless;
    private final int[] states;
    private boolean inputsEnded = false;
    private long lastEnd = Long.MIN_VALUE;
    private DataOutput task;

    public FlinkAgentsEndValve(long channels, long mark, long end, boolean endless) {
        super((int) channels);
        this.mark = mark;
        this.end = end;
        this.endless = endless;
        this.states = new int[(int) channels];
    }

    public void inputWatermark(Watermark watermark, int channel, DataOutput output) throws Exception {
        task = output;
        long time = watermark.getTimestamp();
        if (states[channel] == MARKED) {
            if (time == LAST) {
                states[channel] = ENDED;
                emitEnd();
            }
            return;
        }
        if (time == mark) {
            states[channel] = MARKED;
            ignore(channel);
        } else if (time == LAST && endless && states[channel] == INPUT) {
            // It takes no further part: signals that ended before a restart send nothing but this.
            states[channel] = ENDED;
            ignore(channel);
        } else {
            super.inputWatermark(watermark, channel, this);
        }
    }

    public void inputWatermarkStatus(WatermarkStatus status, int channel, DataOutput output)
            throws Exception {
        task = output;
        if (states[channel] == INPUT) {
            super.inputWatermarkStatus(status, channel, this);
        }
    }

    private void ignore(int channel) throws Exception {
        if (!endless || hasInputs()) {
            super.inputWatermarkStatus(WatermarkStatus.IDLE, channel, this);
        } else {
            inputsEnded = true;
            emitEnd();
        }
    }

    private boolean hasInputs() {
        for (int i = 0; i < states.length; i++) {
            if (states[i] == INPUT) {
                return true;
            }
        }
        return false;
    }

    private void emitEnd() throws Exception {
        if (!inputsEnded) {
            return;
        }
        long now = LAST;
        for (int i = 0; i < states.length; i++) {
            if (states[i] == MARKED) {
                now = end;
            }
        }
        if (now > lastEnd) {
            lastEnd = now;
            task.emitWatermark(new Watermark(now));
        }
    }

    // What the valve emits. The rest of the interface is for records, which do not pass here.

    public void emitWatermark(Watermark watermark) throws Exception {
        if (watermark.getTimestamp() == LAST) {
            inputsEnded = true;
            emitEnd();
        } else {
            task.emitWatermark(watermark);
        }
    }

    public void emitWatermarkStatus(WatermarkStatus status) throws Exception {
        task.emitWatermarkStatus(status);
    }

    public void emitRecord(StreamRecord record) throws Exception {
        task.emitRecord(record);
    }

    public void emitLatencyMarker(LatencyMarker marker) throws Exception {
        task.emitLatencyMarker(marker);
    }

    public void emitRecordAttributes(RecordAttributes attributes) throws Exception {
        task.emitRecordAttributes(attributes);
    }

    public void emitWatermark(WatermarkEvent event) throws Exception {
        task.emitWatermark(event);
    }
}
"""
