"""Options of a job, in one place: name, type, default and meaning.

A value comes from the first of these sources that has one: code (``Configuration.set`` or the mapping passed
to ``AgentsExecutionEnvironment``), the environment (``FLINK_AGENTS_RUN_MAX_EVENTS`` for ``run.max-events``),
Flink's configuration (``flink-agents.run.max-events``), a YAML file (named by ``FLINK_AGENTS_CONFIG``), the
default. An unknown name is an error in each source.

Options of a store have the prefix ``action-state.NAME.``, and are declared next to the store. Those of this
package's stores are listed like all others. A third party's store may declare its own; if it does not, its
options are passed to it as they are.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flink_agents.api.common.option_values import ConfigOption, option
from flink_agents.api.common.policies import OnError, OnUnhandled
from flink_agents.api.durable import OnJobChange, OnMismatch, OnPlanChange, Prune
from flink_agents.api.errors import OptionError
from flink_agents.api.errors.base import suggest
from flink_agents.api.events.signals import TimersAtEnd
from flink_agents.api.settings.local_jobs import Accept, Resume
from flink_agents.api.settings.stores import STORE_PREFIX, STORES, options_of_store, third_party_stores
from flink_agents.api.settings.tracing import TraceOptions

if TYPE_CHECKING:
    from flink_agents.api.settings.yaml_source import Leaf, YamlSource

T = TypeVar("T")

FLINK_PREFIX = "flink-agents."
"""Prefix of this package's options in Flink's configuration."""

ENVIRONMENT_PREFIX = "FLINK_AGENTS_"
"""Prefix of environment variables that set options."""

CONFIG_FILE_VARIABLE = "FLINK_AGENTS_CONFIG"
"""Environment variable with the path of a YAML file of options."""

CONSOLE_TOKEN_VARIABLE = "FLINK_AGENTS_UI_TOKEN"
"""Environment variable with the token of the console in the browser."""

JOB_FILE_VARIABLE = "FLINK_AGENTS_JOB_FILE"
"""Environment variable with the path of ``flink-agents.toml``, the defaults of commands."""

JOB_VARIABLE = "FLINK_AGENTS_JOB"
"""Environment variable with the name of the job in that file whose defaults apply."""

KAFKA_JAR_VARIABLE = "FLINK_AGENTS_KAFKA_JAR"
"""Environment variable with the path of the jar file of Flink's Kafka connector."""

TEST_MODE_VARIABLE = "FLINK_AGENTS_TEST_MODE"
"""Environment variable that makes the test kit replay, restart or crash."""

_NO_OPTIONS = (
    CONFIG_FILE_VARIABLE,
    KAFKA_JAR_VARIABLE,
    CONSOLE_TOKEN_VARIABLE,
    JOB_FILE_VARIABLE,
    JOB_VARIABLE,
    TEST_MODE_VARIABLE,
)
"""Variables with the prefix of options that are not options."""

_SEE_TABLE = "see the table of options in docs/configuration.md"


class AgentOptions(TraceOptions):
    """All options of this package but those of its stores; :func:`all_options` returns both by key."""

    JOB_IDENTIFIER = option("job-identifier", str, is_name=True)(
        "Name of the job across submissions; ids of runs and events derive from it. Default: Flink's "
        "job id at the first start."
    )
    SHORT_TERM_TTL = option("memory.short-term.ttl", timedelta, minimum="1 ms")(
        "Time after which an entry of short-term memory that is not written again expires."
    )
    ON_ERROR = option("actions.on-error", OnError, OnError.FAIL)(
        "Policy for an action that raises, if neither it nor its agent has one."
    )
    ON_UNHANDLED = option("events.on-unhandled", OnUnhandled, OnUnhandled.FAIL)(
        "Policy for an event that no action accepts, if its agent has none."
    )
    MAX_EVENTS = option("run.max-events", int, 10_000, minimum=1)("Maximum number of events of a run.")
    CHECK_CODE = option("run.check-code", bool, True)(
        "Reject a worker whose loaded modules differ from those of the job."
    )
    INLINE = option("run.inline", bool, True)(
        "Run def actions at once if nothing of the key is waiting; for tests."
    )
    MAX_IN_FLIGHT = option("run.max-in-flight", int, 1000, minimum=1)(
        "Most actions of a subtask that run at a time."
    )
    POOL_SIZE = option("run.pool-size", int, 16, minimum=1)(
        "Threads of a subtask for def actions; as many for asyncio.to_thread."
    )
    TIMERS_AT_END = option("run.timers-at-end", TimersAtEnd, TimersAtEnd.WAIT)(
        "At the end of a bounded input, wait for sleeping runs and delayed events, or skip the time."
    )
    RUN_DEADLINE = option("run.deadline", timedelta, minimum="1 ms")(
        "Longest time of a run that sleeps or waits; then its waits raise. Default: no limit."
    )
    MAX_SUSPENDED_PER_KEY = option("run.max-suspended-per-key", int, 100, minimum=1)(
        "Inputs wait if this number of runs of a key is suspended, even with 'interleave'."
    )
    SIGNALS_PER_KEY = option("signals.max-per-key", int, 100, minimum=1)(
        "Maximum number of signals that a key keeps for later waits."
    )
    SIGNALS_TTL = option("signals.ttl", timedelta, "7 d", minimum="1 s")(
        "Time that a signal waits for a run, and that its id is remembered."
    )
    STUCK_AFTER = option("run.stuck-after", timedelta, "5 min", minimum="0 s")(
        "Log a run on the event loop that takes longer, and the reason why it waits. 0 s: never."
    )
    BLOCKED_AFTER = option("loop.blocked-after", timedelta, "1 s", minimum="0 s")(
        "Log code that blocks the event loop for longer. 0 s: never."
    )
    QUEUE_PER_KEY = option("queue.max-per-key", int, 100, minimum=1)(
        "Waiting inputs of a key in memory; more wait in state only."
    )
    QUEUE_TOTAL = option("queue.max-total", int, 1000, minimum=1)(
        "Waiting inputs of a subtask in memory before it takes no more (backpressure)."
    )
    ALLOW_PICKLE = option("state.allow-pickle", bool, False)(
        "Allow any class in state, by pickle: reading runs code that the bytes name."
    )
    STATE_MODULES = option("state.modules", str)(
        "Modules, separated by commas, that may be imported to find classes of stored values."
    )
    IDLE_KEY_TTL = option("state.idle-key-ttl", timedelta, minimum="1 s")(
        "Time without an input after which state drops a key without memory. Default: never."
    )
    CHAT_MODELS = option("chat-models", cast("type[dict[str, Any]]", dict))(
        "Overrides, such as `chat-models.NAME.model` or `.limits.requests`."
    )
    EMBEDDING_MODELS = option("embedding-models", cast("type[dict[str, Any]]", dict))(
        "Overrides, such as `embedding-models.NAME.base_url`."
    )
    SKILLS = option("skills", cast("type[dict[str, Any]]", dict))("Overrides, such as `skills.NAME.path`.")
    VECTOR_STORES = option("vector-stores", cast("type[dict[str, Any]]", dict))(
        "Overrides, such as `vector-stores.NAME.path`."
    )
    MCP_SERVERS = option("mcp-servers", cast("type[dict[str, Any]]", dict))(
        "Overrides, such as `mcp-servers.NAME.url`."
    )
    RESTART_ATTEMPTS = option("local.restart.attempts", int, 3, minimum=0)(
        "Number of restarts of a local job with checkpoints before it fails."
    )
    RESTART_DELAY = option("local.restart.delay", timedelta, "1 s", minimum="0 s")(
        "Time before such a restart."
    )
    RESUME = option("local.resume", Resume, Resume.AUTO)(
        "Resume a local job that has a name and runs from a file. require: raise an error if it cannot."
    )
    FRESH = option("local.fresh", bool, False)("Start a local job over, and move its old data aside.")
    JAVA_TRACE = option("local.java-trace", bool, False)(
        "If a local job fails, print Flink's whole message, too."
    )
    LOG_SIZE_MB = option("local.log-size-mb", int, 16, minimum=1)(
        "MiB at which the log of a local job starts a new file."
    )
    LOG_FILES = option("local.log-files", int, 4, minimum=2)("Number of these files.")
    STATE_DIR = option("local.state-dir", str)(
        "Directory of the folders of local jobs. Default: .flink-agents beside the script."
    )
    SAVEPOINT = option("local.savepoint", str)("Savepoint of another job that a local job starts from.")
    CHECKPOINT_INTERVAL = option("local.checkpoint-interval", timedelta, "5 s", minimum="10 ms")(
        "Time between checkpoints of a local job that resumes."
    )
    STOP_TIMEOUT = option("local.stop-timeout", timedelta, "60 s", minimum="0 s")(
        "Time for the savepoint at Ctrl-C and SIGTERM; then the job ends without one."
    )
    ACCEPT = option("local.accept", Accept, Accept.NOTHING)(
        "Accepted by a start: aborted transactions, repeated steps, or another script."
    )

    # -- durable execution; the options of a store are declared next to the store -------

    STORE = option("action-state.store", str)(
        "Store of the journals: sqlite, kafka, memory, or an installed one. Default in a local job: sqlite."
    )
    ON_MISMATCH = option("action-state.on-mismatch", OnMismatch, OnMismatch.FAIL)(
        "If a replay makes another durable step than was recorded. rerun: drop the records."
    )
    REORDER_TIMEOUT = option("action-state.reorder-timeout", timedelta, "60 s", minimum="0 s")(
        "After a restore: time that a recorded run waits for its input before others of its key run."
    )
    LATE_INPUT_TIMEOUT = option("action-state.late-input-timeout", timedelta, "1 d", minimum="0 s")(
        "After a restore: time that a recorded run is kept for its input if others ran first."
    )
    ON_PLAN_CHANGE = option("action-state.on-plan-change", OnPlanChange, OnPlanChange.CONTINUE_COMPATIBLE)(
        "If the agent's plan changed. continue-compatible: fail only if unfinished work does not fit."
    )
    SHUTDOWN_GRACE = option("action-state.shutdown-grace", timedelta, "3 s", minimum="0 s")(
        "Time that durable steps have to finish if an attempt of the job ends in a running process."
    )
    ON_JOB_CHANGE = option("action-state.on-job-change", OnJobChange, OnJobChange.FAIL)(
        "If state belongs to another job-identifier. fork: use its own journals. adopt: continue those of "
        "the other job, which has ended."
    )
    PRUNE = option("action-state.prune", Prune, Prune.CHECKPOINTS)(
        "When records are removed: when all retained checkpoints cover them, or after a restore."
    )
    RETENTION = option("action-state.retention", timedelta, "0 s", minimum="0 s")(
        "Extra time that such records are kept."
    )
    REST_ADDRESS = option("action-state.rest-address", str)(
        "Flink's REST address for TaskManagers, such as jobmanager:8081."
    )


def all_options() -> dict[str, ConfigOption[Any]]:
    """Return every option of this package by key, in the order of declaration."""
    options_by_key: dict[str, ConfigOption[Any]] = {
        config_option.key: config_option
        for options in (AgentOptions, TraceOptions)
        for config_option in vars(options).values()
        if isinstance(config_option, ConfigOption)
    }
    for store in STORES.built_in:
        options_by_key |= options_of_store(store) or {}
    return options_by_key


def find_option(key: str, source: str) -> ConfigOption[Any]:
    """Return the declaration of the option ``key``.

    An entry of an option of type ``dict``, and an option of a store that declares none, accept any value.

    Args:
        key: The option's key.
        source: The place that sets it, such as ``the environment``, for the error.

    Raises:
        OptionError: The option is unknown; the message suggests a similar name.
    """
    options = all_options()
    stores = (name for name in third_party_stores(key) if key.startswith(f"{STORE_PREFIX}{name}."))
    store = next(stores, None)
    if store is not None:
        store_options = options_of_store(store)
        if store_options is None and key != f"{STORE_PREFIX}{store}.":
            return ConfigOption(key, object, None, f"An option of the store {store!r}.")
        options = store_options or options
    config_option = options.get(key) or _entry_option(key, options.values())
    if config_option is not None:
        return config_option
    fix = _unknown_option_fix(key, options)
    raise OptionError(
        # Not after the names, of which there are many.
        f"unknown option {key!r} in {source}: {fix}",
        expected="one of " + ", ".join(options),
        found=repr(key),
        fix=fix,
    )


def _entry_option(key: str, options: Iterable[ConfigOption[Any]]) -> ConfigOption[Any] | None:
    """Return an option for one entry of an option of type ``dict``; None if ``key`` is no such entry."""
    for config_option in options:
        prefix = f"{config_option.key}."
        if config_option.type is dict and key.startswith(prefix) and key != prefix:
            return ConfigOption(key, object, None, config_option.doc)
    return None


def _unknown_option_fix(key: str, option_keys: Iterable[str]) -> str:
    """Return the fix for an unknown option: a similar key, to install its store, or the table of options."""
    store, dot, _ = key.removeprefix(STORE_PREFIX).partition(".")
    is_of_unknown_store = key.startswith(STORE_PREFIX) and bool(dot) and store not in STORES.built_in
    # Names of a store's options resemble each other, so suggestions would mislead.
    otherwise = f"install the store {store!r}, or correct its name" if is_of_unknown_store else _SEE_TABLE
    return suggest(key, option_keys, otherwise, cutoff=0.9 if is_of_unknown_store else 0.6)


class Configuration(Mapping[str, Any]):
    """Values of options that were set; :meth:`get` falls back to the defaults.

    As a mapping, it has the set values by key, without defaults.

    Args:
        values: Values by option or key.
        source: The place that sets them, such as ``the environment``, for errors.

    Raises:
        OptionError: A key is unknown, or a value is invalid.
    """

    def __init__(
        self, values: Mapping[str | ConfigOption[Any], object] | None = None, source: str = "code"
    ) -> None:
        self._values: dict[str, Any] = {}
        for key, value in (values or {}).items():
            self.set(key, value, source)

    def set(self, option: ConfigOption[Any] | str, value: object, source: str = "code") -> Configuration:
        """Set an option, or the option with a key, to a value or the text of one; return this configuration.

        Raises:
            OptionError: The option is unknown, or the value is invalid.
        """
        resolved_option = option if isinstance(option, ConfigOption) else find_option(option, source)
        self._values[resolved_option.key] = resolved_option.parse(value)
        return self

    def get(self, option: ConfigOption[T] | str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the value of an option: the set one, else ``default``, else the option's default.

        Args:
            option: The option, or its key.
            default: The value if it is not set; None for the option's default.

        Raises:
            OptionError: The option is unknown.
        """
        resolved_option = option if isinstance(option, ConfigOption) else find_option(option, "code")
        if resolved_option.key in self._values:
            return self._values[resolved_option.key]
        return default if default is not None else resolved_option.default

    def below(self, prefix: str) -> dict[str, Any]:
        """Return the values whose keys start with ``prefix`` and a dot, by the rest of their keys.

        ``below("action-state.sqlite")`` are the options of the store ``sqlite``.
        """
        start = f"{prefix}."
        return {
            key.removeprefix(start): value for key, value in self._values.items() if key.startswith(start)
        }

    def over(self, lower: Mapping[str, Any]) -> Configuration:
        """Return a new configuration with the values of ``lower``, by key, and of this one, which win."""
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
        """Return the options that ``FLINK_AGENTS_...`` variables set. Default: variables of the process.

        Raises:
            OptionError: A variable with that prefix is not an option, or a value is invalid.
        """
        environ = os.environ if environ is None else environ
        names = {environment_name(key): key for key in all_options()}
        values: dict[str | ConfigOption[Any], object] = {}
        for name, value in environ.items():
            if name.startswith(ENVIRONMENT_PREFIX) and name not in _NO_OPTIONS:
                key = names.get(name) or _key_of_entry(name)
                if key is None:
                    raise _unknown_variable_error(name, [*names, *_NO_OPTIONS])
                values[key] = value
        return cls(values, "the environment")

    @classmethod
    def from_yaml(cls, path: str | Path) -> Configuration:
        """Return the options in a YAML file: nested mappings or dotted keys.

        Raises:
            OptionError: The file cannot be read, is not YAML, or has other content than options.
        """
        source, entries = _read_yaml(Path(path))
        if not isinstance(source.value, dict | None):
            raise OptionError(
                f"{path} is not a mapping of options",
                expected="options and their values, such as 'run.max-events: 100'",
                found=type(source.value).__name__,
                fix="see the YAML in docs/configuration.md",
            )
        values = cls()
        lines: dict[str, int] = {}
        for keys, value, text in entries:
            key = ".".join(keys)
            line = source.line(keys)
            if key in lines:
                raise _repeated_error(f"the option {key!r} is set twice", path, lines[key], line)
            lines[key] = line
            try:
                option = find_option(key, str(path))
                values.set(option, option.written(value, text))
            except OptionError as error:
                raise error.at(f"{path}:{line}") from error
        return values

    @classmethod
    def from_flink(cls, flink: Mapping[str, str]) -> Configuration:
        """Return the options in Flink's configuration, whose keys have the prefix ``flink-agents.``.

        Raises:
            OptionError: A key with that prefix is no option, or a value is invalid.
        """
        values: dict[str | ConfigOption[Any], object] = {
            key[len(FLINK_PREFIX) :]: value for key, value in flink.items() if key.startswith(FLINK_PREFIX)
        }
        return cls(values, "Flink's configuration")

    @classmethod
    def load(
        cls, code: Mapping[str, Any] | None = None, flink: Mapping[str, str] | None = None
    ) -> Configuration:
        """Return the options of all sources, merged in the order that the module's docstring describes.

        Raises:
            OptionError: A source has an unknown option or an invalid value.
        """
        path = os.environ.get(CONFIG_FILE_VARIABLE)
        result = cls.from_yaml(path) if path else cls()
        result = cls.from_flink(flink or {}).over(result)
        result = cls.from_environment().over(result)
        return cls(cast("Mapping[str | ConfigOption[Any], object]", code or {})).over(result)


def environment_name(key: str) -> str:
    """Return the name of the environment variable of an option: ``FLINK_AGENTS_RUN_MAX_EVENTS``."""
    return ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", key).upper()


def _key_of_entry(variable: str) -> str | None:
    """Return the key that a variable sets in an option of type ``dict``, or for a third party's store.

    None if it sets neither.
    """
    for key, config_option in all_options().items():
        start = environment_name(f"{key}.")
        if config_option.type is dict and variable.startswith(start) and variable != start:
            return f"{key}.{variable[len(start) :].lower()}"
    for store in third_party_stores(STORE_PREFIX):
        start = environment_name(f"{STORE_PREFIX}{store}.")
        if variable.startswith(start) and variable != start:
            return f"{STORE_PREFIX}{store}." + variable[len(start) :].lower().replace("_", "-")
    return None


def _unknown_variable_error(name: str, names: list[str]) -> OptionError:
    # Without the common prefix, which would make all names similar.
    words = {variable.removeprefix(ENVIRONMENT_PREFIX): variable for variable in names}
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), words, n=1)
    fix = f"did you mean {words[near[0]]!r}?" if near else _SEE_TABLE
    return OptionError(
        f"unknown option {name!r} in the environment: {fix}",
        expected="one of " + ", ".join(names),
        found=repr(name),
        fix=fix,
    )


def _read_yaml(path: Path) -> tuple[YamlSource, list[Leaf]]:
    """Return a YAML file and its entries; OptionError if it cannot be read or is not YAML."""
    from flink_agents.api.settings.yaml_source import RepeatedKey, YamlProblem, YamlSource

    try:
        source = YamlSource(path.read_text(encoding="utf-8"))
        return source, list(source.leaves())
    except OSError as error:
        raise OptionError(
            f"the file of options {path} cannot be read",
            expected="a YAML file",
            found=str(error),
            fix=f"check the path, perhaps in the variable {CONFIG_FILE_VARIABLE}",
        ) from error
    except RepeatedKey as error:
        raise _repeated_error(error.message, path, error.first, error.line) from None
    except ValueError as error:
        line = error.line if isinstance(error, YamlProblem) else None
        raise OptionError(
            f"the file of options {path} is not YAML",
            expected="options and their values, such as 'run.max-events: 100'",
            found=str(error),
            fix="correct the line",
            where=f"{path}:{line}" if line else str(path),
        ) from error


def _repeated_error(message: str, path: str | Path, first: int, line: int) -> OptionError:
    return OptionError(
        message,
        expected="each option once, with dots or in sections",
        found=f"the first one is in line {first}",
        fix="remove one",
        where=f"{path}:{line}",
    )
