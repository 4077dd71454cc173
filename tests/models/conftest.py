"""Each test starts without effects outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_tools import EFFECTS


@pytest.fixture(autouse=True)
def nothing_done() -> Iterator[None]:
    EFFECTS.clear()
    yield
    EFFECTS.clear()
