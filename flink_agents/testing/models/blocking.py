"""Requests to models in tests, which the pytest plugin makes Pydantic AI reject."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def use_test_kit() -> None:
    """Tell the pytest plugin, if it is loaded, that this session uses the test kit."""
    plugin = sys.modules.get("flink_agents_pytest")
    if plugin is not None:
        plugin.use_test_kit()


@contextmanager
def requests_allowed() -> Iterator[None]:
    """Allow requests to real models inside the block."""
    from pydantic_ai.models import override_allow_model_requests

    # Otherwise the first harness inside of the block would reject them.
    use_test_kit()
    with override_allow_model_requests(True):
        yield
