"""The marker ``own_conditions``: tests that set replay, restart and crash of their harnesses themselves.

``FLINK_AGENTS_TEST_MODE`` changes nothing for them, so they are skipped if it forces anything. The run
without it checks the marker.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flink_agents import redaction
from flink_agents.testing.recovery.forced import forced_conditions

pytest_plugins = [
    "pytester",
    "tests.suite.canary",
    "tests.suite.groups",
    "tests.suite.conditions",
    "tests.suite.factors",
    "tests.suite.heap",
    "tests.suite.selection",
    "tests.suite.shared_broker",
    "tests.suite.temp_root",
]

MARKER = "own_conditions"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}: its harnesses say what they replay, restart and crash")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker(MARKER) is not None and forced_conditions():
        pytest.skip(
            "FLINK_AGENTS_TEST_MODE changes nothing for harnesses that say their conditions themselves"
        )


def pytest_runtest_teardown() -> None:
    # What one test calls a secret is a word of another.
    redaction.forget_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker(MARKER) is None:
        return (yield)
    from flink_agents.testing import OperatorHarness

    plain = OperatorHarness.__init__

    @functools.wraps(plain)
    def checked_init(self: OperatorHarness, *arguments: Any, **options: Any) -> None:
        assert says_its_conditions(options), f"a harness of a test with the marker {MARKER} leaves some open"
        plain(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OperatorHarness, "__init__", checked_init)
        return (yield)


def says_its_conditions(options: Mapping[str, Any]) -> bool:
    """Whether arguments of a harness leave nothing to ``FLINK_AGENTS_TEST_MODE``."""
    if options.get("crash") == "everywhere":
        return True
    own_store = options.get("store") is not None or "action-state.store" in (options.get("config") or {})
    crashes = options.get("crash", "") is None or own_store or options.get("auto_run") is False
    return crashes and None not in (options.get("forced_replay"), options.get("forced_restart"))
