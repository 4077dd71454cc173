"""The pytest plugin of the package: fixtures, a marker, and no requests to real models by accident.

Every test session of an environment loads this module. It is outside the package, which takes time to import,
and imports parts of it when a session uses the test kit.

``agent_harness``
    Makes an :class:`OperatorHarness`; all of them are closed at the end of the test.
``agents_environment``
    Makes an ``AgentsExecutionEnvironment`` on Flink's minicluster. All tests of a session
    share one JVM, which the first use starts.
``kafka_broker``
    A Kafka broker, which all tests of a session share. Needs the extra ``kafka``.
``model_server``
    Makes a :class:`ModelServer`, a local server with OpenAI's interface; all end with the test. In all other
    tests, requests to models are rejected. Needs the extra ``models``.

The marker ``executes_once`` is for tests that check how often, or when, an action was executed.
They are skipped if ``FLINK_AGENTS_TEST_MODE`` makes actions execute more often.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flink_agents.api.environment import AgentsExecutionEnvironment
    from flink_agents.testing.harness import OperatorHarness
    from flink_agents.testing.kafka import KafkaBroker
    from flink_agents.testing.models import ModelServer

MODEL_REQUESTS = "flink_agents_model_requests"
"""The option of pytest's configuration for requests to real models."""

_FLAG = "ALLOW_MODEL_REQUESTS"
_MODELS = "pydantic_ai.models"


class ModelRequests(MetaPathFinder):
    """Makes Pydantic AI reject requests to real models, unless the suite sets ``ALLOW_MODEL_REQUESTS``.

    The value does not show whether the suite has set it, as True is the default: assignments are noticed,
    from the import of the module on.
    """

    def __init__(self) -> None:
        self.blocked = False
        self.chosen = False
        self._watched: ModuleType | None = None

    def watch(self) -> None:
        """Notice assignments, if the module is not imported yet from its import on."""
        module = sys.modules.get(_MODELS)
        if module is None:
            sys.meta_path.insert(0, self)
        else:
            self._watch(module)

    def block(self) -> None:
        """Reject requests from now on. A later call changes nothing: a test may allow requests in between."""
        if not self.blocked:
            self.blocked = True
            self._reject()

    def _reject(self) -> None:
        if self._watched is not None and not self.chosen:
            vars(self._watched)[_FLAG] = False

    def close(self) -> None:
        """End with the session."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._watched is not None:
            self._watched.__class__ = ModuleType
            if self.blocked and not self.chosen:
                vars(self._watched)[_FLAG] = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module, which is watched after its import; None for other modules."""
        if fullname != _MODELS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute: Callable[[ModuleType], None] = loader.exec_module

            def execute_and_watch(module: ModuleType) -> None:
                execute(module)
                self._watch(module)

            loader.exec_module = execute_and_watch
        return spec

    def _watch(self, module: ModuleType) -> None:
        requests = self

        class WatchedModule(ModuleType):
            def __setattr__(self, name: str, value: Any) -> None:
                requests.chosen = requests.chosen or name == _FLAG
                super().__setattr__(name, value)

        module.__class__ = WatchedModule
        self._watched = module
        if self.blocked:
            self._reject()


_sessions: list[ModelRequests] = []
"""Those of the running sessions: a test of a plugin runs a session inside another one."""


def use_test_kit() -> None:
    """Reject requests to real models from now on: the session uses the test kit."""
    if _sessions:
        _sessions[-1].block()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for requests to real models."""
    parser.addini(
        MODEL_REQUESTS,
        "requests of Pydantic AI to real models: 'block', 'allow', or 'auto' (the default), which blocks them"
        " once a test uses flink_agents.testing, unless the suite sets ALLOW_MODEL_REQUESTS",
        default="auto",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Read the option, and notice what the first ``conftest.py`` sets already."""
    mode = early_config.getini(MODEL_REQUESTS)
    if mode not in ("auto", "block", "allow"):
        raise pytest.UsageError(f"{MODEL_REQUESTS} is {mode!r}; write auto, block or allow")
    if mode == "allow":
        return
    requests = ModelRequests()
    requests.watch()
    _sessions.append(requests)

    def end() -> None:
        _sessions.remove(requests)
        requests.close()

    early_config.add_cleanup(end)
    if mode == "block":
        requests.block()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "executes_once: checks executions; is skipped if FLINK_AGENTS_TEST_MODE forces more"
    )


def pytest_report_header() -> str | None:
    """Report which conditions are forced."""
    conditions = _conditions()
    return f"flink-agents harness: {', '.join(sorted(conditions))}" if conditions else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that forced conditions make pointless."""
    if item.get_closest_marker("executes_once") is not None and _conditions():
        pytest.skip("looks at executions, of which FLINK_AGENTS_TEST_MODE forces more")


def _conditions() -> frozenset[str]:
    if not os.environ.get("FLINK_AGENTS_TEST_MODE"):
        return frozenset()
    from flink_agents.api.errors import OptionError
    from flink_agents.testing.recovery.forced import forced_conditions

    try:
        return forced_conditions()
    except OptionError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def agent_harness() -> Iterator[Callable[..., OperatorHarness]]:
    """Return a function with the arguments of :class:`OperatorHarness`."""
    from flink_agents.testing.harness import OperatorHarness

    harnesses: list[OperatorHarness] = []

    def make(*args: Any, **kwargs: Any) -> OperatorHarness:
        harnesses.append(OperatorHarness(*args, **kwargs))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.close()


@pytest.fixture
def agents_environment() -> Callable[..., AgentsExecutionEnvironment]:
    """Return a function that creates an environment.

    Its arguments: ``flink``, a mapping of Flink options; ``config``, a mapping of options; ``parallelism``, 1
    by default.
    """

    def make(
        flink: dict[str, str] | None = None, config: dict[str, Any] | None = None, parallelism: int = 1
    ) -> AgentsExecutionEnvironment:
        from flink_agents.runtime.flink import environment as implementation

        use_test_kit()
        implementation.gateway.prepare_jvms()
        configuration = implementation.FlinkConfiguration()
        for key, value in (flink or {}).items():
            configuration.set_string(key, value)
        env = implementation.StreamExecutionEnvironment.get_execution_environment(configuration)
        env.set_parallelism(parallelism)
        return implementation.create_environment(env, None, config)

    return make


@pytest.fixture
def model_server() -> Iterator[Callable[..., ModelServer]]:
    """Return a function with the arguments of :class:`ModelServer`; it returns a running server."""
    from contextlib import ExitStack

    from flink_agents.testing.models import ModelServer
    from flink_agents.testing.models.blocking import requests_allowed

    use_test_kit()
    with ExitStack() as stack:
        stack.enter_context(requests_allowed())

        def make(*args: Any, **kwargs: Any) -> ModelServer:
            return stack.enter_context(ModelServer(*args, **kwargs))

        yield make


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Yield a broker without encryption, which the first use starts. If it cannot start, the test fails."""
    from flink_agents.testing.kafka import KafkaBroker

    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
