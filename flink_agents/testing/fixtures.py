"""Pytest fixtures; installed with the package, without any import in ``conftest.py``.

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

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flink_agents.api.environment import AgentsExecutionEnvironment
    from flink_agents.testing.harness import OperatorHarness
    from flink_agents.testing.kafka import KafkaBroker
    from flink_agents.testing.models import ModelServer


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and reject requests to models."""
    from flink_agents.testing.models.blocking import block_requests

    block_requests()
    config.addinivalue_line(
        "markers", "executes_once: checks executions; is skipped if FLINK_AGENTS_TEST_MODE forces more"
    )


def pytest_report_header() -> str | None:
    """Report which conditions are forced."""
    conditions = _conditions()
    return f"flink-agents harness: {', '.join(sorted(conditions))}" if conditions else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that forced conditions make pointless."""
    # However runs are committed with "timers", each is executed once.
    if item.get_closest_marker("executes_once") is not None and _conditions() - {"timers"}:
        pytest.skip("looks at executions, of which FLINK_AGENTS_TEST_MODE forces more")


def _conditions() -> frozenset[str]:
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

    made: list[OperatorHarness] = []

    def make(*args: Any, **kwargs: Any) -> OperatorHarness:
        made.append(OperatorHarness(*args, **kwargs))
        return made[-1]

    yield make
    for harness in made:
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

        implementation.gateway.install()
        configuration = implementation.FlinkConfiguration()
        for key, value in (flink or {}).items():
            configuration.set_string(key, value)
        env = implementation.StreamExecutionEnvironment.get_execution_environment(configuration)
        env.set_parallelism(parallelism)
        return implementation.create(env, None, config)

    return make


@pytest.fixture
def model_server() -> Iterator[Callable[..., ModelServer]]:
    """Return a function with the arguments of :class:`ModelServer`; it returns a running server."""
    from contextlib import ExitStack

    from flink_agents.testing.models import ModelServer
    from flink_agents.testing.models.blocking import requests_allowed

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
