"""Options: types, sources, precedence, and errors that help."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from flink_agents import AgentOptions, ConfigOption, Configuration, OnError
from flink_agents.api.common import providers
from flink_agents.api.durable import OnJobChange, OnMismatch, OnPlanChange, Prune
from flink_agents.api.errors import OptionError
from flink_agents.api.events.signals import TimersAtEnd
from flink_agents.api.settings.options import all_options, environment_name
from flink_agents.api.settings.tracing import TraceLevel
from flink_agents.trace.recording.assembly import check_trace_options
from tests.suite.tables import each_case

DEFAULTS = {
    "job-identifier": None,
    "memory.short-term.ttl": None,
    "local.log-size-mb": 16,
    "local.log-files": 4,
    "actions.on-error": OnError.FAIL,
    "events.on-unhandled": OnError.FAIL,
    "run.max-events": 10_000,
    "run.check-code": True,
    "run.inline": True,
    "run.max-in-flight": 1000,
    "run.pool-size": 16,
    "run.timers-at-end": TimersAtEnd.WAIT,
    "run.deadline": None,
    "run.max-suspended-per-key": 100,
    "signals.max-per-key": 100,
    "signals.ttl": timedelta(days=7),
    "run.stuck-after": timedelta(minutes=5),
    "loop.blocked-after": timedelta(seconds=1),
    "queue.max-per-key": 100,
    "queue.max-total": 1000,
    "state.allow-pickle": False,
    "state.idle-key-ttl": None,
    "chat-models": None,
    "mcp-servers": None,
    "skills": None,
    "state.modules": None,
    "action-state.store": None,
    "action-state.on-mismatch": OnMismatch.FAIL,
    "action-state.reorder-timeout": timedelta(seconds=60),
    "action-state.on-plan-change": OnPlanChange.CONTINUE_COMPATIBLE,
    "action-state.shutdown-grace": timedelta(seconds=3),
    "action-state.late-input-timeout": timedelta(days=1),
    "action-state.sqlite.max-tombstones": 100_000,
    "action-state.kafka.max-tombstones": 20_000,
    "action-state.on-job-change": OnJobChange.FAIL,
    "action-state.prune": Prune.CHECKPOINTS,
    "action-state.retention": timedelta(0),
    "action-state.rest-address": None,
    "action-state.memory.place": "default",
    "action-state.sqlite.path": None,
    "action-state.sqlite.lease": timedelta(seconds=10),
    "action-state.sqlite.busy-timeout": timedelta(seconds=30),
    "action-state.sqlite.max-record-bytes": 8 * 1024 * 1024,
    "action-state.kafka.bootstrap-servers": None,
    "action-state.kafka.client": None,
    "action-state.kafka.topic": "flink-agents-action-state",
    "action-state.kafka.partitions": 8,
    "action-state.kafka.replication-factor": -1,
    "action-state.kafka.min-insync-replicas": 0,
    "action-state.kafka.lease": timedelta(seconds=10),
    "action-state.kafka.append-lease": timedelta(seconds=1),
    "action-state.kafka.append-timeout": timedelta(seconds=120),
    "action-state.kafka.rebuild-timeout": timedelta(seconds=120),
    "action-state.kafka.max-record-bytes": 8 * 1024 * 1024,
    "embedding-models": None,
    "vector-stores": None,
    "local.restart.attempts": 3,
    "local.restart.delay": timedelta(seconds=1),
    "local.resume": "auto",
    "local.fresh": False,
    "local.java-trace": False,
    "local.state-dir": None,
    "local.savepoint": None,
    "local.checkpoint-interval": timedelta(seconds=5),
    "local.stop-timeout": timedelta(seconds=60),
    "local.accept": "nothing",
    "trace.level": "off",
    "trace.levels": None,
    "trace.sinks": "jsonl",
    "trace.sample-percent": 100,
    "trace.max-content": 4096,
    "trace.queue": 10_000,
    "trace.directory": "flink-agents-trace",
    "trace.file-size-mb": 16,
    "trace.file-age": timedelta(hours=1),
    "trace.total-size-mb": 256,
    "trace.kafka.bootstrap-servers": None,
    "trace.kafka.topic": "flink-agents-trace",
    "trace.kafka.client": None,
    "answers.kafka.topic": None,
    "answers.kafka.bootstrap-servers": None,
    "answers.kafka.client": None,
    "trace.otlp-endpoint": None,
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in all_options():
        monkeypatch.delenv(environment_name(key), raising=False)
    monkeypatch.delenv("FLINK_AGENTS_CONFIG", raising=False)


def test_defaults() -> None:
    empty = Configuration()
    assert {key: empty.get(key) for key in all_options()} == DEFAULTS
    assert dict(empty) == {}


@each_case("option", all_options().values(), ids=lambda option: option.key)
def test_options_are_documented_and_named_alike(option: ConfigOption[Any]) -> None:
    assert option.doc.endswith(".")
    assert option.key == option.key.lower().replace("_", "-")
    assert option.default is None or isinstance(option.default, option.type)
    if option.default is not None and option.minimum is not None:
        assert option.default >= option.minimum


PARSED: list[tuple[str, object, object]] = [
    ("run.inline", True, True),
    ("run.inline", "false", False),
    ("run.inline", " TRUE ", True),
    ("run.max-events", 5, 5),
    ("run.max-events", "5", 5),
    ("run.max-events", " 7 ", 7),
    ("job-identifier", "orders", "orders"),
    ("job-identifier", "7", "7"),
    ("actions.on-error", "ignore", OnError.IGNORE),
    ("actions.on-error", OnError.DEAD_LETTER, OnError.DEAD_LETTER),
    ("memory.short-term.ttl", timedelta(hours=1), timedelta(hours=1)),
    ("memory.short-term.ttl", "200 ms", timedelta(milliseconds=200)),
    ("memory.short-term.ttl", "5s", timedelta(seconds=5)),
    ("memory.short-term.ttl", " 2 min ", timedelta(minutes=2)),
    ("memory.short-term.ttl", "1.5 h", timedelta(minutes=90)),
    ("memory.short-term.ttl", "7 d", timedelta(days=7)),
    ("memory.short-term.ttl", "1 ms", timedelta(milliseconds=1)),
    ("run.max-events", 1, 1),
    ("local.restart.attempts", 0, 0),
    ("action-state.on-mismatch", "dead-letter", OnMismatch.DEAD_LETTER),
    ("action-state.on-plan-change", "fail", OnPlanChange.FAIL),
    ("action-state.on-job-change", "fork", OnJobChange.FORK),
    ("action-state.shutdown-grace", "0 s", timedelta()),
    ("action-state.reorder-timeout", "0 s", timedelta()),
    ("action-state.sqlite.max-record-bytes", "1", 1),
    ("local.restart.delay", "0 s", timedelta()),
]


@each_case(("key", "value", "expected"), PARSED)
def test_values_are_parsed(key: str, value: object, expected: object) -> None:
    parsed_value = Configuration({key: value}).get(key)
    assert parsed_value == expected
    assert type(parsed_value) is type(expected)


REFUSED: list[tuple[str, object, str]] = [
    ("run.inline", "yes", "true or false"),
    ("run.inline", 1, "true or false"),
    ("run.inline", None, "true or false"),
    ("run.max-events", "many", "an integer"),
    ("run.max-events", 5.0, "an integer"),
    ("run.max-events", True, "an integer"),
    ("run.max-events", "", "an integer"),
    ("job-identifier", 7, "a string"),
    ("actions.on-error", "explode", "'fail', 'retry', 'ignore', 'dead-letter'"),
    ("events.on-unhandled", "retry", "'fail', 'ignore', 'dead-letter'"),
    ("actions.on-error", "IGNORE", "'fail', 'retry', 'ignore', 'dead-letter'"),
    ("actions.on-error", [], "'fail', 'retry', 'ignore', 'dead-letter'"),
    ("memory.short-term.ttl", "5", "a duration such as"),
    ("memory.short-term.ttl", 5, "a duration such as"),
    ("memory.short-term.ttl", "-5 s", "a duration such as"),
    ("memory.short-term.ttl", "5 weeks", "a duration such as"),
    ("memory.short-term.ttl", "", "a duration such as"),
    ("memory.short-term.ttl", "99999999999999 d", "a duration such as"),
    ("memory.short-term.ttl", "9" * 400 + " d", "a duration such as"),
    ("memory.short-term.ttl", "0 s", "at least 1 ms"),
    ("memory.short-term.ttl", "0.5 ms", "at least 1 ms"),
    ("memory.short-term.ttl", timedelta(seconds=-1), "at least 1 ms"),
    ("run.max-events", 0, "an integer, at least 1"),
    ("run.max-events", "-5", "an integer, at least 1"),
    ("action-state.on-mismatch", "retry", "'fail', 'rerun', 'dead-letter'"),
    ("action-state.on-plan-change", "go-on", "'fail', 'continue-compatible'"),
    ("action-state.on-job-change", "share", "'fail', 'fork', 'adopt'"),
    ("action-state.shutdown-grace", "-1 s", "at least 0 s"),
    ("action-state.sqlite.lease", "1 ms", "at least 100 ms"),
    ("local.restart.attempts", -1, "an integer, at least 0"),
    ("local.restart.delay", timedelta(seconds=-1), "at least 0 s"),
]


@each_case(("key", "value", "expected"), REFUSED)
def test_value_that_does_not_fit_is_a_named_error(key: str, value: object, expected: str) -> None:
    with pytest.raises(OptionError) as caught:
        Configuration({key: value})
    assert key in caught.value.message
    assert expected in (caught.value.expected or "")
    assert caught.value.found == repr(value)
    fix = caught.value.fix or ""
    assert fix.endswith(all_options()[key].doc)
    assert fix.startswith("write a value such as ") or all_options()[key].type is str


def test_a_value_that_is_nearly_right_is_named() -> None:
    for value, fix in (("rerunn", "did you mean 'rerun'?"), ("3 fortnights", "")):
        with pytest.raises(OptionError) as caught:
            Configuration({"action-state.on-mismatch": value})
        assert (caught.value.fix or "").startswith(fix)
    with pytest.raises(OptionError) as caught:
        Configuration({"run.deadline": "3 fortnights"})
    assert (caught.value.fix or "").startswith("write a value such as '5 min', or omit the option: ")


@each_case(
    ("key", "near"),
    [("run.max-event", "run.max-events"), ("runs.inline", "run.inline"), ("on-error", "actions.on-error")],
)
def test_unknown_option_suggests_a_near_one(key: str, near: str) -> None:
    for use in (lambda: Configuration({key: 1}), lambda: Configuration().get(key)):
        with pytest.raises(OptionError) as caught:
            use()
        assert repr(key) in caught.value.message
        assert caught.value.fix == f"did you mean {near!r}?"


def test_unknown_option_without_a_near_one_names_all() -> None:
    with pytest.raises(OptionError) as caught:
        Configuration({"zzz": 1})
    assert all(key in (caught.value.expected or "") for key in all_options())
    assert "docs/configuration.md" in (caught.value.fix or "")


def test_reading() -> None:
    values = Configuration().set(AgentOptions.MAX_EVENTS, "5").set("run.inline", False)
    assert (
        values.get(AgentOptions.MAX_EVENTS) == values.get("run.max-events") == values["run.max-events"] == 5
    )
    assert values.get("run.inline", True) is False
    assert values.get("job-identifier", "default") == "default"
    assert values.get(AgentOptions.MAX_EVENTS, 9) == 5
    assert dict(values) == {"run.max-events": 5, "run.inline": False}
    assert len(values) == 2


# -- sources -------------------------------------------------------------------------


@each_case("key", all_options())
def test_name_in_the_environment(key: str) -> None:
    name = environment_name(key)
    assert name == "FLINK_AGENTS_" + key.upper().replace(".", "_").replace("-", "_")


def test_environment() -> None:
    environ = {"FLINK_AGENTS_RUN_MAX_EVENTS": "5", "FLINK_AGENTS_CONFIG": "x.yaml", "PATH": "/bin"}
    assert dict(Configuration.from_environment(environ)) == {"run.max-events": 5}


def test_every_variable_that_the_documentation_names_may_be_set() -> None:
    """Among them those that are no options: of the file of options, and of Kafka's connector."""
    pages = "".join(page.read_text("utf-8") for page in (Path(__file__).parents[2] / "docs").rglob("*.md"))
    named = set(re.findall(r"\bFLINK_AGENTS_[A-Z_]+[A-Z]\b", pages))
    option_names = {environment_name(key) for key in all_options()}
    maps = tuple(environment_name(key) + "_" for key, option in all_options().items() if option.type is dict)
    maps += ("FLINK_AGENTS_ACTION_STATE_NAME_",)  # Stands for the name of another's store.
    other_names = {name for name in named - option_names if not name.startswith(maps)}
    no_options = {"CONFIG", "JOB_FILE", "KAFKA_JAR", "TEST_MODE", "UI_TOKEN"}
    assert other_names == {f"FLINK_AGENTS_{name}" for name in no_options}
    assert not Configuration.from_environment(dict.fromkeys(other_names, "a file"))


@each_case("name", ["FLINK_AGENTS_RUN_MAX_EVENT", "FLINK_AGENTS_X"])
def test_unknown_name_in_the_environment_is_a_named_error(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*the environment"):
        Configuration.from_environment({name: "5"})


@each_case(
    ("name", "near"),
    [
        ("FLINK_AGENTS_RUN_MAX_EVENT", "FLINK_AGENTS_RUN_MAX_EVENTS"),
        ("FLINK_AGENTS_MEMORY_SHORTTERM_TTL", "FLINK_AGENTS_MEMORY_SHORT_TERM_TTL"),
        ("FLINK_AGENTS_CONFG", "FLINK_AGENTS_CONFIG"),
        ("FLINK_AGENTS_X", None),
    ],
)
def test_unknown_name_in_the_environment_suggests_a_near_one(name: str, near: str | None) -> None:
    with pytest.raises(OptionError) as caught:
        Configuration.from_environment({name: "5"})
    fix = f"did you mean {near!r}?" if near else "see the table of options in docs/configuration.md"
    assert caught.value.fix == fix
    assert "FLINK_AGENTS_RUN_INLINE" in (caught.value.expected or "")


def test_flink() -> None:
    flink = {"flink-agents.run.inline": "false", "parallelism.default": "2", "run.max-events": "7"}
    assert dict(Configuration.from_flink(flink)) == {"run.inline": False}
    with pytest.raises(OptionError, match="Flink's configuration"):
        Configuration.from_flink({"flink-agents.run.online": "false"})


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "agents.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "run:\n  max-events: 5\n  inline: false\n",
        "run.max-events: 5\nrun.inline: false\n",
        "{run: {max-events: '5', inline: 'false'}}",
    ],
)
def test_yaml(tmp_path: Path, text: str) -> None:
    values = Configuration.from_yaml(yaml_file(tmp_path, text))
    assert dict(values) == {"run.max-events": 5, "run.inline": False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "not a mapping of options"),
        ("text", "not a mapping of options"),
        ("run:\n  online: true", "'run.online' in"),
        ("1: x", "'1' in"),
        ("run.inline:", "invalid value"),
    ],
)
def test_yaml_that_says_no_options_is_a_named_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Configuration.from_yaml(yaml_file(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "line"),
    [(b"run:\n  - [5", 2), (b"a: b: c", 1), (b"a: !!python/name:os.system", 1), (b"\xff", None)],
)
def test_file_that_is_no_yaml_is_a_named_error(tmp_path: Path, text: bytes, line: int | None) -> None:
    path = tmp_path / "agents.yaml"
    path.write_bytes(text)
    with pytest.raises(OptionError, match="is not YAML") as caught:
        Configuration.from_yaml(path)
    assert caught.value.where == (f"{path}:{line}" if line else str(path))
    assert caught.value.expected and caught.value.found and caught.value.fix


REPEATED: dict[str, tuple[str, int]] = {
    "run.max-events: 5\nrun.max-events: 6\n": ("run.max-events", 2),
    "run:\n  max-events: 5\n  max-events: 5\n": ("max-events", 3),
    "run: {max-events: 5}\ntrace: {level: runs}\nrun: {inline: true}\n": ("run", 3),
    "run:\n  max-events: 5\nrun.max-events: 6\n": ("run.max-events", 3),
    "run.max-events: 6\nrun:\n  inline: true\n  max-events: 5\n": ("run.max-events", 4),
    "{run: {max-events: 5}, 'run.max-events': 5}": ("run.max-events", 1),
    "trace:\n  kafka.topic: a\ntrace.kafka:\n  topic: b\n": ("trace.kafka.topic", 4),
    "trace.levels.A: runs\ntrace.levels:\n  A: calls\n": ("trace.levels.A", 3),
    "trace.levels:\n  yes: runs\n  on: calls\n": ("on", 3),
    "trace.levels: {1: runs, 0x1: calls}\n": ("0x1", 1),
    "trace.kafka.client:\n  a: {b: 1}\n  a.b: 2\n": ("trace.kafka.client.a.b", 3),
}


@each_case(("text", "repeated"), REPEATED.items())
def test_an_option_is_set_once_in_a_file(tmp_path: Path, text: str, repeated: tuple[str, int]) -> None:
    path = yaml_file(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        Configuration.from_yaml(path)
    key, line = repeated
    assert repr(key) in caught.value.message and caught.value.where == f"{path}:{line}"
    assert "line " in (caught.value.found or "") and caught.value.fix == "remove one"


def test_values_of_a_merged_section_are_replaced(tmp_path: Path) -> None:
    text = "trace.levels:\n  A: &base {x: runs, y: runs}\n  B: {<<: *base, y: calls}\n"
    values = Configuration.from_yaml(yaml_file(tmp_path, text)).below("trace.levels")
    assert values == {"A.x": "runs", "A.y": "runs", "B.x": "runs", "B.y": "calls"}


@each_case(
    "text",
    [
        *("off", "on", "yes", "no", "true", "False", "null", "Null", "~", "0", "010", "0x10", "0o7", "1e3"),
        *("1.50", "1_000", "+5", "-0", ".inf", ".nan", "12:30", "12:30:45.5", "2024-05-01", "2024-13-45"),
        *("2024-05-01 10:00:00", "2024-05-01T10:00:00Z", "a", "ünï", "1.2.3"),
    ],
)
@each_case("form", ["{}", "'{}'", '"{}"', "!!str {}"])
def test_a_text_is_the_one_that_is_written(tmp_path: Path, form: str, text: str) -> None:
    values = Configuration.from_yaml(yaml_file(tmp_path, f"job-identifier: {form.format(text)}\n"))
    assert values.get("job-identifier") == text


def test_levels_and_numbers_are_those_that_are_written(tmp_path: Path) -> None:
    text = "trace: {level: off, levels: {on: off, A: runs}}\nrun:\n  max-events: 010\n  inline: yes\n"
    values = Configuration.from_yaml(yaml_file(tmp_path, text))
    assert values.get("trace.level") is TraceLevel.OFF
    assert values.below("trace.levels") == {"on": False, "A": "runs"}
    check_trace_options(values)
    assert (values.get("run.max-events"), values.get("run.inline")) == (10, True)


@each_case(
    ("text", "line"),
    [
        ("run:\n  inline: true\n  max-events: 12:30", 3),
        ("trace.level: no", 1),
        ("run.max-events: 2024-05-01", 1),
        ("\njob-identifier:", 2),
        ("job-identifier: !!binary /w==", 1),
        ("trace.sinks: [jsonl, kafka]", 1),
        ("trace:\n  level: runs\n  file-age: 12:30", 3),
        ("trace.kafka.client.a: !!omap [{a: 1}]", 1),
        ("run: &run\n  max-events: *run", 1),
        ("trace.kafka.client.a: !!bool x", 1),
        ("run:\n  max-event: 5", 2),
    ],
)
def test_an_error_in_a_file_names_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = yaml_file(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        Configuration.from_yaml(path)
    assert caught.value.where == f"{path}:{line}"


def test_entries_of_any_type_are_values_of_json(tmp_path: Path) -> None:
    text = (
        "trace.kafka.client: {d: 2024-05-01, t: 12:30, n: 5, b: yes, s: [2024-05-01, 1], e: !!set {x, y}}\n"
    )
    values = Configuration.from_yaml(yaml_file(tmp_path, text)).below("trace.kafka.client")
    assert values["d"] == "2024-05-01" and values["t"] == "12:30"
    assert (values["n"], values["b"], values["s"]) == (5, True, ["2024-05-01", 1])
    assert values["e"] == ["x", "y"]


def test_file_that_cannot_be_read_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing.yaml"
    monkeypatch.setenv("FLINK_AGENTS_CONFIG", str(missing))
    for load, path in ((Configuration.load, missing), (lambda: Configuration.from_yaml(tmp_path), tmp_path)):
        with pytest.raises(OptionError, match="cannot be read") as caught:
            load()
        assert str(path) in caught.value.message
        assert "FLINK_AGENTS_CONFIG" in (caught.value.fix or "")


def test_empty_yaml(tmp_path: Path) -> None:
    assert dict(Configuration.from_yaml(yaml_file(tmp_path, "# nothing\n"))) == {}


SOURCES = ["yaml", "flink", "environment", "code"]
"""From the weakest to the strongest."""


@pytest.mark.parametrize("strongest", range(len(SOURCES)))
def test_precedence(strongest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source sets the option to its own name; the strongest of those present wins."""
    present = SOURCES[: strongest + 1]
    monkeypatch.setenv(
        "FLINK_AGENTS_CONFIG", str(yaml_file(tmp_path, "job-identifier: yaml\nrun.max-events: 5"))
    )
    if "environment" in present:
        monkeypatch.setenv("FLINK_AGENTS_JOB_IDENTIFIER", "environment")
    values = Configuration.load(
        code={"job-identifier": "code"} if "code" in present else None,
        flink={"flink-agents.job-identifier": "flink"} if "flink" in present else None,
    )
    assert dict(values) == {"job-identifier": SOURCES[strongest], "run.max-events": 5}


def test_over_changes_neither_side() -> None:
    upper = Configuration({"run.inline": False})
    lower = Configuration({"run.inline": True, "run.max-events": 5})
    assert dict(upper.over(lower)) == {"run.inline": False, "run.max-events": 5}
    assert dict(upper) == {"run.inline": False}
    assert dict(lower) == {"run.inline": True, "run.max-events": 5}


# -- options of stores ---------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of third parties, of which one has the name of another as its beginning."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    names = "their-store = a:b\ntheir = a:b\nsqlite = a:b\n"
    (info / "entry_points.txt").write_text(f"[flink_agents.action_state_stores]\n{names}")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_below() -> None:
    values = Configuration({"action-state.store": "sqlite", "action-state.sqlite.path": "a.db"})
    values.set("action-state.sqlite.lease", "2 s").set("action-state.memory.place", "here")
    assert values.below("action-state.sqlite") == {"path": "a.db", "lease": timedelta(seconds=2)}
    assert values.below("action-state.memory") == {"place": "here"}
    assert values.below("action-state.sql") == Configuration().below("action-state.sqlite") == {}


@pytest.mark.usefixtures("installed")
def test_options_of_an_installed_store_are_taken_as_they_are(tmp_path: Path) -> None:
    text = "action-state:\n  their:\n    a: {b: 1}\n    list: [1, x]\n  their-store.url: u\n"
    values = Configuration.from_yaml(yaml_file(tmp_path, text))
    assert values.below("action-state.their") == {"a.b": 1, "list": [1, "x"]}
    assert values.below("action-state.their-store") == {"url": "u"}
    assert values.get("action-state.their.a.b") == 1
    assert values.get("action-state.their.c") is None
    flink = Configuration.from_flink({"flink-agents.action-state.their.c": "7"}).over(values)
    assert flink.below("action-state.their") == {"a.b": 1, "list": [1, "x"], "c": "7"}


@pytest.mark.usefixtures("installed")
def test_options_of_an_installed_store_in_the_environment() -> None:
    environ = {
        "FLINK_AGENTS_ACTION_STATE_THEIR_STORE_ACCESS_KEY": "x",
        "FLINK_AGENTS_ACTION_STATE_THEIR_URL": "u",
        "FLINK_AGENTS_ACTION_STATE_STORE": "their",
    }
    assert dict(Configuration.from_environment(environ)) == {
        "action-state.their-store.access-key": "x",
        "action-state.their.url": "u",
        "action-state.store": "their",
    }


@pytest.mark.usefixtures("installed")
@each_case(
    "key",
    [
        "action-state.sqlite.paht",
        "action-state.sqllite.path",
        "action-state.their.",
        "action-state.their",
        "action-state.theirs.url",
        "action-state.on-mismatch.their.url",
        "their.url",
    ],
)
def test_an_option_of_no_store_is_a_named_error(key: str) -> None:
    with pytest.raises(OptionError, match="unknown option"):
        Configuration({key: "x"})
    name = environment_name(key)
    with pytest.raises(OptionError, match=f"unknown option '{name}'"):
        Configuration.from_environment({name: "x"})


def test_an_option_of_a_store_that_is_not_installed_is_a_named_error() -> None:
    with pytest.raises(OptionError, match="unknown option") as caught:
        Configuration({"action-state.redis.url": "x"})
    assert caught.value.fix == "install the store 'redis', or correct its name"


def test_options_of_this_package_are_found_without_looking_for_distributions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def search(**_: Any) -> NoReturn:
        raise AssertionError("entry points were looked for")

    monkeypatch.setattr(providers, "entry_points", search)
    monkeypatch.setenv("FLINK_AGENTS_RUN_INLINE", "false")
    values = Configuration.load({"run.max-events": 5})
    assert dict(values) == {"run.inline": False, "run.max-events": 5}
