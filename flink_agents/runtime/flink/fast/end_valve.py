"""The valve that combines the watermarks of inputs and signals.

Flink has no stream that takes no part in event time but holds back its end. If the other inputs are idle, the
watermark of an active stream passes. An idle stream is ignored, also when the other inputs end. So this
valve, in Java, knows such channels by their first watermark, their *mark*, and regards them as idle. When the
inputs have reached the last watermark, it emits an earlier one instead, until the marked channels end too.

Flink compiles the text on the worker, as it does for the queries of its tables.
"""

from __future__ import annotations

from dataclasses import dataclass

FAR = 2**63 - 2**45
"""The watermark when only inputs have ended: after any of them, and before the timers at the end."""

MARK = FAR + 1
"""The first watermark of signals, which no operator emits otherwise."""


@dataclass(frozen=True)
class SignalEnd:
    """The part that a stream of signals takes in event time: it holds the end.

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
