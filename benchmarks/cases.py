"""The cases: jobs, baselines, parameters and targets."""

from __future__ import annotations

from benchmarks.report import Case, Job, Target, added_in_bare_events, of_bare, of_baseline

_DELAYS = ("p50_ms", "p99_ms")
_CALLS = ("in_flight", "calls_per_second", "cpu_ms_per_call")
_RATE = ("calls_per_second", "longest_delay_ms")
_APPENDS = ("appends_per_second", "append_p50_ms", "append_p99_ms")
_REQUESTS = ("requests_per_second", "cpu_ms_per_request")
_TURNS = ("turns_chat_cpu_ms", "turns_direct_cpu_ms", "turns_cpu_ratio", "turns_loop_ratio")
_RECORDED = ("calls_per_second", "cpu_ms_per_call", "loop_ms_per_call")
_BARE = Job("bare", "benchmarks.bare 80000 100", ("bare_events_per_second",), prefix="bare_")
"""The bare function of the case ``static`` as a measure of the machine in the rounds of other cases. Its size
is fixed, so that the number of events of a case does not change the measure."""


def _prefixed(prefix: str, *figures: str) -> tuple[str, ...]:
    return tuple(prefix + figure for figure in figures)


CASES: dict[str, Case] = {
    "static": Case(
        meaning="steady events per second of two chained actions with a counter in short-term memory, "
        "beside a bare KeyedProcessFunction with one value of state",
        parameters={"events": 80_000, "keys": 100},
        ours=(Job("ours", "benchmarks.ours {events} {keys}", ("events_per_second",)),),
        baselines=(Job("bare", "benchmarks.bare {events} {keys}", ("events_per_second",)),),
        targets=(Target("ratio", "of_bare", "at_least", 0.55),),
        derived=(of_bare("events_per_second", "events_per_second"),),
    ),
    "startup": Case(
        meaning="seconds from process start to the first output, beside the same bare function",
        parameters={"events": 1000, "keys": 100},
        ours=(Job("ours", "benchmarks.ours {events} {keys}", ("first_output_seconds",)),),
        baselines=(Job("bare", "benchmarks.bare {events} {keys}", ("first_output_seconds",)),),
        targets=(Target("difference", "first_output_seconds", "at_most", 1.0),),
    ),
    "latency": Case(
        meaning="milliseconds from record to output at 20 records a second: of an action that ends at "
        "once, and, above the call, of one that awaits a call; beside a bare KeyedProcessFunction",
        parameters={"events": 250, "keys": 100, "seconds": 0.1},
        ours=(
            Job("sync", "benchmarks.waiting sync {events} {keys} 0", _DELAYS),
            Job(
                "async",
                "benchmarks.waiting async {events} {keys} {seconds}",
                _prefixed("above_call_", *_DELAYS),
            ),
        ),
        baselines=(Job("bare", "benchmarks.waiting bare {events} {keys} 0", _DELAYS),),
        targets=(
            Target("difference", "p50_ms", "at_most", 0.5),
            Target("ours", "p50_ms", "at_most", 5.0),
            Target("ours", "p99_ms", "at_most", 20.0),
            Target("ours", "above_call_p50_ms", "at_most", 10.0),
        ),
    ),
    "async": Case(
        meaning="calls of a second in flight, calls per second and processor time per call, with as many "
        "calls as 10,000 slots allow, which is at most 10,000 calls per second; the same with calls of a "
        "quarter of a second, where the slots allow 40,000, so that the runtime and not the slots limit the "
        "rate; beside the same calls from a plain asyncio program without streams, and a bare "
        "KeyedProcessFunction",
        parameters={"events": 60_000, "keys": 20_000, "seconds": 1.0, "short_seconds": 0.25},
        ours=(
            Job("flood", "benchmarks.waiting flood {events} {keys} {seconds}", _CALLS),
            Job(
                "short flood",
                "benchmarks.waiting flood {events} {keys} {short_seconds}",
                _prefixed("short_", *_CALLS),
                prefix="short_",
            ),
        ),
        baselines=(
            _BARE,
            Job("calls", "benchmarks.waiting calls {events} {keys} {seconds}", _CALLS),
            Job(
                "short calls",
                "benchmarks.waiting calls {events} {keys} {short_seconds}",
                _prefixed("short_", *_CALLS),
                prefix="short_",
            ),
        ),
        targets=(
            Target("ours", "in_flight", "at_least", 9000),
            Target("ratio", "of_bare", "at_least", 0.27),
        ),
        derived=(of_bare("short_calls_per_second"),),
    ),
    "hold": Case(
        meaning="calls of a second per second at 2,000 records a second and at twice as many, with "
        "watermarks every 200 ms and EventTime.hold_watermarks, and how many outputs were late or had "
        "another timestamp than their input; beside the same jobs with EventTime.ignore(), and a bare "
        "KeyedProcessFunction",
        parameters={"events": 40_000, "rate": 2000, "backlog_rate": 4000},
        ours=(
            Job("hold", "benchmarks.hold --events {events} --rate {rate}", (*_RATE, "late", "wrong")),
            Job(
                "hold, backlog",
                "benchmarks.hold --events {events} --rate {backlog_rate}",
                _prefixed("backlog_", *_RATE, "late", "wrong"),
                prefix="backlog_",
            ),
        ),
        baselines=(
            _BARE,
            Job("none", "benchmarks.hold --events {events} --rate {rate} --event-time none", _RATE),
            Job(
                "none, backlog",
                "benchmarks.hold --events {events} --rate {backlog_rate} --event-time none",
                _prefixed("backlog_", *_RATE),
                prefix="backlog_",
            ),
        ),
        targets=(
            Target("ratio", "calls_per_second", "at_least", 0.95),
            Target("ratio", "backlog_calls_per_second", "at_least", 0.95),
            *(
                Target("ours", figure, "at_most", 0, "max")
                for figure in ("late", "wrong", "backlog_late", "backlog_wrong")
            ),
        ),
        derived=(of_bare("calls_per_second"),),
    ),
    "durable": Case(
        meaning="durable calls of a function that does nothing per second, milliseconds from record to "
        "output at 20 of them a second, and events per second of an agent that makes none; beside the same "
        "jobs without a store, which make their calls directly, beside the store alone, and beside a bare "
        "KeyedProcessFunction",
        parameters={"store": "sqlite", "events": 30_000, "keys": 5000},
        ours=(
            Job("calls", "benchmarks.durable rate {store} {events} {keys}", _RECORDED),
            Job("latency", "benchmarks.durable latency {store} {events} {keys}", _DELAYS),
            Job("static", "benchmarks.durable static {store} {events} {keys}", ("events_per_second",)),
        ),
        baselines=(
            _BARE,
            Job("direct", "benchmarks.durable rate none {events} {keys}", _RECORDED),
            Job("direct latency", "benchmarks.durable latency none {events} {keys}", _DELAYS),
            Job("without store", "benchmarks.durable static none {events} {keys}", ("events_per_second",)),
            Job("store alone", "benchmarks.store --store {store} --appends {events}", _APPENDS),
        ),
        targets=(
            Target("ratio", "of_bare", "at_least", 0.16, of_store={"kafka": 0.15}),
            Target("difference", "added_in_bare_events", "at_most", 4.0, of_store={"kafka": 6.0}),
            Target("difference", "p50_ms", "at_most", 5.0, of_store={"kafka": 6.0}),
            Target("ratio", "events_per_second", "at_least", 0.95),
        ),
        derived=(of_bare("calls_per_second"), added_in_bare_events("cpu_ms_per_call")),
    ),
    "chat": Case(
        meaning="processor time of a request to a chat model over HTTP with 20 under way, and milliseconds "
        "that it takes at 20 a second, by ctx.chat with records in SQLite; beside pydantic_ai.direct and the "
        "library of OpenAI in the same action without a store, and by turns with the former in one process; "
        "seconds for 1,000 keys at a model that takes half a second, with 50 under way, of which the limit "
        "is 10",
        parameters={"events": 1000, "keys": 500},
        ours=(
            Job("chat", "benchmarks.chat chat {events} {keys}", (*_REQUESTS, "loop_ms_per_request")),
            Job("turns", "benchmarks.chat turns {events} {keys}", _TURNS),
            Job("paced", "benchmarks.chat chat-paced {events} {keys}", ("p50_ms",)),
            Job("flood", "benchmarks.chat flood {events} {events}", ("flood_seconds", "seconds_above_floor")),
        ),
        baselines=(
            Job("direct", "benchmarks.chat direct {events} {keys}", _REQUESTS),
            Job("direct paced", "benchmarks.chat direct-paced {events} {keys}", ("p50_ms",)),
            Job("sdk", "benchmarks.chat sdk {events} {keys}", ("loop_ms_per_request",)),
        ),
        targets=(
            Target("ours", "turns_cpu_ratio", "at_most", 1.15),
            Target("difference", "p50_ms", "at_most", 5.0),
            Target("ours", "flood_seconds", "at_most", 15.0),
        ),
    ),
    "signal": Case(
        meaning="milliseconds from the making of a signal to the action behind its wait, at 50 signals a "
        "second while 10,000 runs wait; beside records at 20 a second through a bare KeyedProcessFunction",
        parameters={"events": 500, "waiting": 10_000, "rate": 50.0},
        ours=(Job("signals", "benchmarks.signals {events} {waiting} {rate}", _DELAYS),),
        baselines=(Job("bare", "benchmarks.waiting bare {events} 100 0", _DELAYS),),
        targets=(
            Target("ours", "p50_ms", "at_most", 10.0),
            Target("ours", "p99_ms", "at_most", 50.0),
        ),
    ),
    "rebuild": Case(
        meaning="seconds in which a store in Kafka reads all records of a topic, of which nine runs in ten "
        "were pruned, and those behind markers behind which a hundredth lies; megabytes that it keeps; "
        "beside a bare consumer of the same records",
        parameters={"store": "kafka", "events": 1_000_000},
        ours=(
            Job(
                "store",
                "benchmarks.rebuild {events}",
                ("all_seconds", "tail_seconds", "kept_mb", "records_kept"),
            ),
        ),
        baselines=(Job("bare", "benchmarks.rebuild --bare {events}", ("all_seconds",)),),
        targets=(Target("ours", "all_seconds", "at_most", 40.0),),
    ),
    "keys": Case(
        meaning="bytes that the Python process and the store grow by for each key in the second half of a "
        "million that come once each, with one durable call, are committed and pruned; seconds in which the "
        "next attempt has recorded 1,000 new keys; beside the same without a store",
        parameters={"store": "sqlite", "keys": 1_000_000},
        ours=(
            Job(
                "store",
                "benchmarks.keys --store {store} {keys}",
                ("keys_per_second", "memory_bytes_per_key", "store_bytes_per_key", "restart_seconds"),
            ),
        ),
        baselines=(Job("nothing", "benchmarks.keys --store none {keys}", ("keys_per_second",)),),
        targets=(
            Target("ours", "memory_bytes_per_key", "at_most", 20.0, "max"),
            Target("ours", "store_bytes_per_key", "at_most", 20.0, "max"),
            Target("ours", "restart_seconds", "at_most", 5.0, "max"),
        ),
        rounds=1,
    ),
    "kit": Case(
        meaning="seconds in which a harness of the test kit takes an input for each of 100,000 keys, which "
        "then sleep, and wakes them all; beside keys that do not sleep",
        parameters={"keys": 100_000},
        ours=(Job("kit", "benchmarks.kit {keys}", ("seconds", "push_seconds", "wake_seconds")),),
        baselines=(Job("awake", "benchmarks.kit --awake {keys}", ("seconds",)),),
        targets=(Target("ours", "seconds", "at_most", 30.0),),
        rounds=1,
    ),
    "resume": Case(
        meaning="steady events and durable calls per second of a local job that resumes, beside the same "
        "jobs that do not",
        parameters={"events": 60_000},
        ours=(
            Job("static", "benchmarks.resume static {events} 1", ("events_per_second",)),
            Job(
                "durable",
                "benchmarks.resume durable {events} 1",
                ("durable_events_per_second",),
                prefix="durable_",
            ),
        ),
        baselines=(
            Job("static without", "benchmarks.resume static {events} 0", ("events_per_second",)),
            Job(
                "durable without",
                "benchmarks.resume durable {events} 0",
                ("durable_events_per_second",),
                prefix="durable_",
            ),
        ),
        targets=(
            Target("ratio", "events_per_second", "at_least", 0.97),
            Target("ratio", "durable_events_per_second", "at_least", 0.97),
        ),
    ),
    "trace": Case(
        meaning="steady events per second of two chained actions, and durable calls per second with records "
        "in SQLite, with a trace of the level calls in files, and the same of the level runs; beside the "
        "same jobs without a trace",
        parameters={"events": 40_000, "keys": 100, "calling_keys": 5000},
        ours=(
            Job("calls", "benchmarks.trace calls static {events} {keys}", ("events_per_second",)),
            Job(
                "calls, durable",
                "benchmarks.trace calls durable {events} {calling_keys}",
                ("calls_per_second",),
            ),
            Job(
                "runs",
                "benchmarks.trace runs static {events} {keys}",
                ("runs_events_per_second",),
                prefix="runs_",
            ),
            Job(
                "runs, durable",
                "benchmarks.trace runs durable {events} {calling_keys}",
                ("runs_calls_per_second",),
                prefix="runs_",
            ),
        ),
        baselines=(
            Job("off", "benchmarks.trace off static {events} {keys}", ("events_per_second",)),
            Job(
                "off, durable", "benchmarks.trace off durable {events} {calling_keys}", ("calls_per_second",)
            ),
        ),
        targets=(
            Target("ratio", "events_per_second", "at_least", 0.9),
            Target("ratio", "calls_per_second", "at_least", 0.9),
        ),
        derived=(
            of_baseline("runs_events_per_second", "events_per_second"),
            of_baseline("runs_calls_per_second", "calls_per_second"),
        ),
    ),
    "idle": Case(
        meaning="percent of a core that a job of two Kafka sources, an agent, a window and seven Kafka sinks "
        "takes while nothing happens, after some records, at parallelism 1 and 3; beside the same job with "
        "Flink's own buffer timeout",
        parameters={"store": "kafka", "events": 2, "seconds": 30.0},
        ours=(
            Job(
                "1",
                "benchmarks.idle 1 {events} {seconds}",
                ("parallelism_1_cpu_percent",),
                prefix="parallelism_1_",
            ),
            Job(
                "3",
                "benchmarks.idle 3 {events} {seconds}",
                ("parallelism_3_cpu_percent",),
                prefix="parallelism_3_",
            ),
        ),
        baselines=(
            Job(
                "flink",
                "benchmarks.idle 3 {events} {seconds} 100",
                ("parallelism_3_cpu_percent",),
                prefix="parallelism_3_",
            ),
        ),
        targets=(
            Target("ours", "parallelism_1_cpu_percent", "at_most", 5.0),
            Target("ours", "parallelism_3_cpu_percent", "at_most", 10.0),
        ),
    ),
}
