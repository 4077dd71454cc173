"""Options of a job, in one place: name, type, default and meaning.

A value comes from the first of these that has one: code (``Configuration.set`` or the mapping
given to ``AgentsExecutionEnvironment``), the environment (``FLINK_AGENTS_RUN_MAX_EVENTS`` for
``run.max-events``), Flink's configuration (``flink-agents.run.max-events``), a YAML file
(named by ``FLINK_AGENTS_CONFIG``), the default. An unknown name is an error wherever it stands.

Options of a store stand below ``action-state.NAME.``, and are declared beside it. Those of this package's
stores are listed like all others. An installed store of a third party may declare its own; those of one that
does not are taken as they are, and read by it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from flink_agents.api.durable import OnJobChange, OnMismatch, OnPlanChange, Prune
from flink_agents.api.error_base import suggest
from flink_agents.api.errors import OptionError
from flink_agents.api.local_jobs import Accept, Resume
from flink_agents.api.option_values import ConfigOption, option
from flink_agents.api.policies import OnError, OnUnhandled
from flink_agents.api.signals import TimersAtEnd
from flink_agents.api.store_providers import STORE_PREFIX, STORES, options_of_store, third_party_stores
from flink_agents.api.trace_options import TraceOptions

T = TypeVar("T")

FLINK_PREFIX = "flink-agents."
ENVIRONMENT_PREFIX = "FLINK_AGENTS_"
CONFIG_FILE_VARIABLE = "FLINK_AGENTS_CONFIG"
CONSOLE_TOKEN_VARIABLE = "FLINK_AGENTS_UI_TOKEN"
KAFKA_JAR_VARIABLE = "FLINK_AGENTS_KAFKA_JAR"
"""The environment variable that names the jar file of Flink's Kafka connector."""

TEST_MODE_VARIABLE = "FLINK_AGENTS_TEST_MODE"
"""The environment variable that makes the test kit replay, restart or crash."""

_NO_OPTIONS = (CONFIG_FILE_VARIABLE, KAFKA_JAR_VARIABLE, CONSOLE_TOKEN_VARIABLE, TEST_MODE_VARIABLE)
"""Variables that begin as options do and are none."""

_SEE_TABLE = "see the table of options in docs/configuration.md"


class AgentOptions(TraceOptions):
    """All options of this package. Iterate with :func:`all_options`."""

    JOB_IDENTIFIER = option("job-identifier", str)(
        "Name of the job that stays the same across submissions. Ids of events and runs derive "
        "from it. Default: Flink's job id at the first start, kept in state."
    )
    SHORT_TERM_TTL = option("memory.short-term.ttl", timedelta, minimum="1 ms")(
        "Time after which a short-term memory entry that was not written again is forgotten. Default: never."
    )
    ON_ERROR = option("actions.on-error", OnError, OnError.FAIL)(
        "Policy for an action that raises, if neither the action nor its agent has one."
    )
    ON_UNHANDLED = option("events.on-unhandled", OnUnhandled, OnUnhandled.FAIL)(
        "Policy for an event that no action accepts, if its agent has none."
    )
    MAX_EVENTS = option("run.max-events", int, 10_000, minimum=1)(
        "How many events one run may emit; a run beyond it fails instead of looping forever."
    )
    CHECK_CODE = option("run.check-code", bool, True)(
        "Refuse to start on a worker whose modules in memory are not those that the job was built with."
    )
    INLINE = option("run.inline", bool, True)(
        "Run def actions at once where nothing of the key is waiting. False stores each input in "
        "state first and hands it to the agent loop."
    )
    FAST_PATH = option("run.fast-path", bool, True)(
        "Call the operator, let outputs leave and commit runs by internals of PyFlink, where those found "
        "are the known ones. False, or others are found: by PyFlink's public API, which is slower."
    )
    MAX_IN_FLIGHT = option("run.max-in-flight", int, 1000, minimum=1)(
        "How many actions of a subtask may be executed at a time outside of Flink's thread. One that "
        "waits for a limit or for its next attempt does not count."
    )
    POOL_SIZE = option("run.pool-size", int, 16, minimum=1)(
        "How many threads of a subtask execute def actions that block, have a timeout or a limit, or "
        "belong to a run that had to wait. As many others execute what asyncio.to_thread is given. A thread "
        "that hangs though the time of its action is over does not count."
    )
    MAY_SUSPEND = option("run.may-suspend", bool)(
        "True if actions can call ctx.sleep and ctx.wait_for_signal. Default: found by reading their code. "
        "Runs of such agents keep what they recorded in memory, and none of them begins on Flink's thread."
    )
    TIMERS_AT_END = option("run.timers-at-end", TimersAtEnd, TimersAtEnd.WAIT)(
        "What becomes of runs that sleep, and of delayed events, when a bounded input ends. wait: the job "
        "ends when they have ended. skip: they end at once."
    )
    RUN_DEADLINE = option("run.deadline", timedelta, minimum="1 ms")(
        "How long a run may take that sleeps or waits for signals, from its begin. Then its waits end with "
        "an error, and so does each further one. Default: no limit."
    )
    MAX_SUSPENDED_PER_KEY = option("run.max-suspended-per-key", int, 100, minimum=1)(
        "How many suspended runs of a key its inputs may overtake, with on_suspend = 'interleave'. Behind so "
        "many, further inputs wait in state until one of those runs has ended."
    )
    SIGNALS_PER_KEY = option("signals.max-per-key", int, 100, minimum=1)(
        "How many signals of a key may wait for a run that has not asked for them. Others are not delivered."
    )
    SIGNALS_TTL = option("signals.ttl", timedelta, "7 d", minimum="1 s")(
        "How long a signal waits for a run, and how long its id is remembered once a run has taken it."
    )
    STUCK_AFTER = option("run.stuck-after", timedelta, "5 min", minimum="0 s")(
        "A run on the agent loop that takes longer is reported in the log, once, with what it waits for. "
        "0 s: never."
    )
    BLOCKED_AFTER = option("loop.blocked-after", timedelta, "1 s", minimum="0 s")(
        "Code that keeps the agent loop from turning for longer is reported in the log while it does. "
        "0 s: never."
    )
    QUEUE_PER_KEY = option("queue.max-per-key", int, 100, minimum=1)(
        "How many waiting inputs of a key are kept in memory; more of them wait in state only."
    )
    QUEUE_TOTAL = option("queue.max-total", int, 1000, minimum=1)(
        "How many inputs of a subtask may wait in memory, besides those that are executed, before "
        "the subtask takes no more (backpressure)."
    )
    ALLOW_PICKLE = option("state.allow-pickle", bool, False)(
        "Let memory and waiting events hold values of any class, by pickle. Such state cannot "
        "be read after the class changes, and reading it runs code that the bytes name."
    )
    STATE_MODULES = option("state.modules", str)(
        "Modules, separated by commas, that may be imported to find the classes of values in state and "
        "in records; a package stands for all modules in it. Modules that the agent's code imports need "
        "not be named."
    )
    IDLE_KEY_TTL = option("state.idle-key-ttl", timedelta, minimum="1 s")(
        "After what time without an input state forgets a key that has no memory. A key that comes again "
        "has new idempotency keys, event ids and UUIDs. Default: state keeps each key "
        "for ever, with 30 to 130 bytes."
    )
    CHAT_MODELS = option("chat-models", cast("type[dict[str, Any]]", dict))(
        "What a job says about a chat model in place of its agent: `chat-models.NAME.model`, `.base_url`, "
        "`.max_concurrency`, `.limits.requests` or any other option of the chat model `NAME`."
    )
    EMBEDDING_MODELS = option("embedding-models", cast("type[dict[str, Any]]", dict))(
        "What a job says about an embedding model in place of its agent: `embedding-models.NAME.model`, "
        "`.base_url`, `.max_concurrency` or any other option of the embedding model `NAME`."
    )
    SKILLS = option("skills", cast("type[dict[str, Any]]", dict))(
        "What a job says about skills in place of its agent: `skills.NAME.path`, `.timeout`, "
        "`.max_concurrency` or any other option of the skills `NAME`."
    )
    VECTOR_STORES = option("vector-stores", cast("type[dict[str, Any]]", dict))(
        "What a job says about a vector store in place of its agent: `vector-stores.NAME.path`, `.host`, "
        "`.collection` or any other option of the vector store `NAME`."
    )
    MCP_SERVERS = option("mcp-servers", cast("type[dict[str, Any]]", dict))(
        "What a job says about an MCP server in place of its agent: `mcp-servers.NAME.url`, `.command`, "
        "`.timeout` or any other option of the MCP server `NAME`."
    )
    RESTART_ATTEMPTS = option("local.restart.attempts", int, 3, minimum=0)(
        "How often a local job with checkpoints restarts before it fails, where Flink's "
        "configuration names no restart strategy."
    )
    RESTART_DELAY = option("local.restart.delay", timedelta, "1 s", minimum="0 s")(
        "Pause before such a restart."
    )
    RESUME = option("local.resume", Resume, Resume.AUTO)(
        "Whether a start of a local job resumes the last one if that did not finish. auto: if the job has a "
        "name and is run from a file, outside of IPython and pytest. require: a job that cannot is an error."
    )
    FRESH = option("local.fresh", bool, False)(
        "Start a local job over: what earlier starts left in its folder is moved aside."
    )
    JAVA_TRACE = option("local.java-trace", bool, False)(
        "Print all that Flink says if a local job fails, before the error of the job."
    )
    STATE_DIR = option("local.state-dir", str)(
        "Directory of the folders in which local jobs keep what they resume from. "
        "Default: .flink-agents beside the script."
    )
    SAVEPOINT = option("local.savepoint", str)(
        "Directory of a savepoint of another job, for example of a cluster, with which a local job begins. "
        "Once the job has begun, its own checkpoints count."
    )
    CHECKPOINT_INTERVAL = option("local.checkpoint-interval", timedelta, "5 s", minimum="10 ms")(
        "Time between checkpoints of a local job that resumes, unless you enable checkpoints yourself."
    )
    STOP_TIMEOUT = option("local.stop-timeout", timedelta, "60 s", minimum="0 s")(
        "How long the savepoint may take with which Ctrl-C and SIGTERM stop a local job. Then the job ends "
        "without one, and the next start resumes from its last checkpoint. 0 s: no savepoint."
    )
    ACCEPT = option("local.accept", Accept, Accept.NOTHING)(
        "What a start of a local job may accept to resume. lost-outputs: that brokers have aborted "
        "transactions of its outputs. older-journal: that durable steps are made again which an older copy "
        "of the journal lacks. other-script: that it continues a job run which another script began."
    )

    # -- durable execution, whatever its store; the options of a store stand with it -----

    STORE = option("action-state.store", str)(
        "Name of the store in which durable calls are recorded: sqlite, kafka, memory, or one that is "
        "installed. Default: sqlite in a local job that makes such calls; a job on a cluster names one."
    )
    ON_MISMATCH = option("action-state.on-mismatch", OnMismatch, OnMismatch.FAIL)(
        "What happens where a replay asks for another durable call than was recorded. rerun: what the "
        "execution recorded is void, and it is executed again."
    )
    REORDER_TIMEOUT = option("action-state.reorder-timeout", timedelta, "60 s", minimum="0 s")(
        "How long a recorded run waits for its own input after a restore, before others of its key run."
    )
    LATE_INPUT_TIMEOUT = option("action-state.late-input-timeout", timedelta, "1 d", minimum="0 s")(
        "How long a recorded run that others have overtaken is kept for its input, after a restore."
    )
    ON_PLAN_CHANGE = option("action-state.on-plan-change", OnPlanChange, OnPlanChange.CONTINUE_COMPATIBLE)(
        "What happens where state was written by another plan of the agent. fail: the job fails. "
        "continue-compatible: it fails only where unfinished work does not fit the new plan."
    )
    SHUTDOWN_GRACE = option("action-state.shutdown-grace", timedelta, "3 s", minimum="0 s")(
        "How long durable calls may continue when an attempt of the job ends in a living process, so that "
        "they are recorded and not made again. No other call begins then."
    )
    ON_JOB_CHANGE = option("action-state.on-job-change", OnJobChange, OnJobChange.FAIL)(
        "What happens where state was written by a job with another job-identifier. fail: the job fails. "
        "fork: it records in journals of its own. adopt: it continues those of the other job, which "
        "must have ended."
    )
    PRUNE = option("action-state.prune", Prune, Prune.CHECKPOINTS)(
        "When records of durable calls are removed. checkpoints: when all checkpoints that Flink retains "
        "cover them, which its REST interface says. restore-only: after a restore."
    )
    RETENTION = option("action-state.retention", timedelta, "0 s", minimum="0 s")(
        "How much longer such records are kept, for debugging."
    )
    REST_ADDRESS = option("action-state.rest-address", str)(
        "Where TaskManagers reach Flink's REST interface, such as jobmanager:8081 or https://host/path. "
        "Default: what their Flink configuration says."
    )


def all_options() -> dict[str, ConfigOption[Any]]:
    """Return every option of this package by key, in the order of declaration."""
    found: dict[str, ConfigOption[Any]] = {
        one.key: one
        for options in (AgentOptions, TraceOptions)
        for one in vars(options).values()
        if isinstance(one, ConfigOption)
    }
    for store in STORES.built_in:
        found |= options_of_store(store) or {}
    return found


def _below(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    return {key[len(prefix) + 1 :]: value for key, value in values.items() if key.startswith(f"{prefix}.")}


def find_option(key: str, source: str) -> ConfigOption[Any]:
    """Return the option named ``key``, as found in ``source``.

    Raises:
        OptionError: There is none; the text suggests a near name.
    """
    options = all_options()
    store = next((one for one in third_party_stores(key) if key.startswith(f"{STORE_PREFIX}{one}.")), None)
    if store is not None:
        declared = options_of_store(store)
        if declared is None and key != f"{STORE_PREFIX}{store}.":
            return ConfigOption(key, object, None, f"An option of the store {store!r}.")
        options = declared or options
    found = options.get(key) or _entry_of(key, options.values())
    if found is not None:
        return found
    fix = _fix_of(key, options)
    raise OptionError(
        # Not behind the names, of which there are many.
        f"unknown option {key!r} in {source}: {fix}",
        expected="one of " + ", ".join(options),
        found=repr(key),
        fix=fix,
    )


def _entry_of(key: str, options: Iterable[ConfigOption[Any]]) -> ConfigOption[Any] | None:
    """Return the option of one entry, where ``key`` names an entry of one of ``options``."""
    for one in options:
        if one.type is dict and key.startswith(f"{one.key}.") and key != f"{one.key}.":
            return ConfigOption(key, object, None, one.doc)
    return None


def _fix_of(key: str, options: Iterable[str]) -> str:
    store, dot, _ = key.removeprefix(STORE_PREFIX).partition(".")
    foreign = key.startswith(STORE_PREFIX) and bool(dot) and store not in STORES.built_in
    # An option of a store has much in common with others that are not meant.
    otherwise = f"install the store {store!r}, or correct its name" if foreign else _SEE_TABLE
    return suggest(key, options, otherwise, cutoff=0.9 if foreign else 0.6)


class Configuration(Mapping[str, Any]):
    """Values of options that were set; reading falls back to the defaults.

    Args:
        values: Values by option or key.
        source: Where they come from, for error texts.

    Raises:
        OptionError: A key is unknown or a value does not fit.
    """

    def __init__(
        self, values: Mapping[str | ConfigOption[Any], object] | None = None, source: str = "code"
    ) -> None:
        self._values: dict[str, Any] = {}
        for key, value in (values or {}).items():
            self.set(key, value, source)

    def set(self, option: ConfigOption[Any] | str, value: object, source: str = "code") -> Configuration:
        """Set one option; returns this configuration."""
        found = option if isinstance(option, ConfigOption) else find_option(option, source)
        self._values[found.key] = found.parse(value)
        return self

    def get(self, option: ConfigOption[T] | str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the value of ``option``: the one set, else ``default``, else the option's own."""
        found = option if isinstance(option, ConfigOption) else find_option(option, "code")
        if found.key in self._values:
            return self._values[found.key]
        return default if default is not None else found.default

    def below(self, prefix: str) -> dict[str, Any]:
        """Return the values whose keys begin with ``prefix`` and a dot, by the rest of their keys.

        ``below("action-state.sqlite")`` are the options of the store ``sqlite``.
        """
        return _below(self._values, prefix)

    def over(self, lower: Mapping[str, Any]) -> Configuration:
        """Return a configuration in which these values win over ``lower``."""
        merged = Configuration()
        merged._values = {**lower, **self._values}
        return merged

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Configuration:
        """Return options set by ``FLINK_AGENTS_...`` variables.

        Raises:
            OptionError: A variable with that prefix names no option, or a value does not fit.
        """
        environ = os.environ if environ is None else environ
        names = {environment_name(key): key for key in all_options()}
        values: dict[str | ConfigOption[Any], object] = {}
        for name, value in environ.items():
            if name.startswith(ENVIRONMENT_PREFIX) and name not in _NO_OPTIONS:
                key = names.get(name) or _key_of_store(name)
                if key is None:
                    raise _unknown_variable(name, [*names, *_NO_OPTIONS])
                values[key] = value
        return cls(values, "the environment")

    @classmethod
    def from_yaml(cls, path: str | Path) -> Configuration:
        """Return options of a YAML file: nested mappings or dotted keys.

        Raises:
            OptionError: The file cannot be read, is no YAML, or says something else than options.
        """
        loaded = _load_yaml(Path(path))
        if loaded is None:
            loaded = {}
        if not isinstance(loaded, dict):
            raise OptionError(
                f"{path} is no mapping of options",
                expected="options and their values, such as 'run.max-events: 100'",
                found=type(loaded).__name__,
                fix="see the YAML in docs/configuration.md",
            )
        return cls(dict(_flatten(cast("dict[str, object]", loaded))), str(path))

    @classmethod
    def from_flink(cls, flink: Mapping[str, str]) -> Configuration:
        """Return options that stand in Flink's configuration behind ``flink-agents.``."""
        values: dict[str | ConfigOption[Any], object] = {
            key[len(FLINK_PREFIX) :]: value for key, value in flink.items() if key.startswith(FLINK_PREFIX)
        }
        return cls(values, "Flink's configuration")

    @classmethod
    def load(
        cls, code: Mapping[str, Any] | None = None, flink: Mapping[str, str] | None = None
    ) -> Configuration:
        """Return all sources in their order of precedence (see the module's text)."""
        path = os.environ.get(CONFIG_FILE_VARIABLE)
        result = cls.from_yaml(path) if path else cls()
        result = cls.from_flink(flink or {}).over(result)
        result = cls.from_environment().over(result)
        return cls(cast("Mapping[str | ConfigOption[Any], object]", code or {})).over(result)


def environment_name(key: str) -> str:
    """Return the environment variable of the option ``key``."""
    return ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", key).upper()


def _key_of_store(name: str) -> str | None:
    """Return the key that a variable sets: an entry of an option, or a third party's option."""
    for key, one in all_options().items():
        start = environment_name(f"{key}.")
        if one.type is dict and name.startswith(start) and name != start:
            return f"{key}.{name[len(start) :].lower()}"
    for store in third_party_stores(STORE_PREFIX):
        start = environment_name(f"{STORE_PREFIX}{store}.")
        if name.startswith(start) and name != start:
            return f"{STORE_PREFIX}{store}." + name[len(start) :].lower().replace("_", "-")
    return None


def _unknown_variable(name: str, names: list[str]) -> OptionError:
    # Without the prefix, which makes all names alike.
    words = {one.removeprefix(ENVIRONMENT_PREFIX): one for one in names}
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), words, n=1)
    fix = f"did you mean {words[near[0]]!r}?" if near else _SEE_TABLE
    return OptionError(
        f"unknown option {name!r} in the environment: {fix}",
        expected="one of " + ", ".join(names),
        found=repr(name),
        fix=fix,
    )


def _load_yaml(path: Path) -> object:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"the file of options {path} cannot be read",
            expected="a YAML file",
            found=str(error),
            fix=f"check the path, which the variable {CONFIG_FILE_VARIABLE} may give",
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise OptionError(
            f"the file of options {path} is no YAML",
            expected="options and their values, such as 'run.max-events: 100'",
            found=getattr(error, "problem", None) or str(error),
            fix="correct the line",
            where=f"{path}:{mark.line + 1}" if mark else str(path),
        ) from error


def _flatten(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(cast("dict[str, object]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
