"""Makes Pydantic AI reject requests to real models, without importing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flink_agents.runtime.flink.launch.imports import when_imported


def block_requests() -> None:
    """Reject requests from now on; if Pydantic AI is not imported yet, from its import on."""
    when_imported("pydantic_ai.models", _block)


def _block(models: Any) -> None:
    models.ALLOW_MODEL_REQUESTS = False


@contextmanager
def requests_allowed() -> Iterator[None]:
    """Allow requests inside the block."""
    from pydantic_ai.models import override_allow_model_requests

    with override_allow_model_requests(True):
        yield
