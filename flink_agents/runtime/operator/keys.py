"""Going from key to key of a subtask, as Flink does between two calls of the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Keys(Protocol):
    """The keys of a subtask. State and timers are always those of the current one."""

    def text(self) -> str:
        """Canonical text of the current key."""
        ...

    def current_key(self) -> Any:
        """The current key, for :meth:`switch`."""
        ...

    def switch(self, key: Any, /) -> None:
        """Make a key current."""
        ...

    def waiting(self) -> Sequence[tuple[str, Any]]:
        """Text and key of all keys that have inputs in state. Any key may be current afterwards."""
        ...
