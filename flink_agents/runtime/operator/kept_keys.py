"""Keeps what state has of the latest keys in memory as well, so that it is not read for each input.

A call of Flink's state costs as much as a short action. The state of a key is changed by this operator
alone, and a restore makes a new operator, which has kept nothing. So what was written last is what would be
read. State is written as ever: nothing is in memory alone.

A key is kept while it has no actor. An actor takes over head and memory, and gives them back when it ends.
"""

from __future__ import annotations

from typing import NamedTuple

from flink_agents.runtime.state.keyed_state import Head

MOST_BYTES = 4 * 1024 * 1024
"""When so much was kept, what was not used since then goes. So there is twice as much at most."""

KEY_BYTES = 700
"""What a key takes without the values of its memory, about."""

NODE_BYTES = 150
"""What a node of memory takes without its value, about."""

MOST_NODES = 50
"""Of a key with more nodes in memory than these, the head is kept alone: to count them takes longer."""


class Kept(NamedTuple):
    """What state has of a key.

    Attributes:
        head: Its head.
        memory: Nodes of its short-term memory by path; None for one that is not there.
        whole: Whether these are all nodes.
        searched: Whether nothing that an earlier attempt recorded of the key is left to be run.
    """

    head: Head
    memory: dict[str, bytes | None]
    whole: bool
    searched: bool


class KeptKeys:
    """Keeps heads and memory of the latest keys. Only Flink's thread uses it.

    Args:
        expires: Whether memory expires in state, so that nothing is kept.
        most_bytes: How much is kept until what was not used goes.
    """

    def __init__(self, expires: bool, most_bytes: int = MOST_BYTES) -> None:
        self._most = 0 if expires else most_bytes
        self._latest: dict[str, Kept] = {}
        self._before: dict[str, Kept] = {}
        self._bytes = 0

    def get(self, key_text: str) -> Kept | None:
        """What is kept of a key, if it is."""
        return self._latest.get(key_text) or self._before.get(key_text)

    def keep(
        self, key_text: str, head: Head, memory: dict[str, bytes | None], whole: bool, searched: bool
    ) -> None:
        """Keep what state has of a key from now on.

        What it takes is counted each time, so that all of them take less than what is counted.
        """
        if not self._most:
            return
        if len(memory) > MOST_NODES:
            memory, whole = {}, False
        self._latest[key_text] = Kept(head, memory, whole, searched)
        self._bytes += KEY_BYTES + NODE_BYTES * len(memory)
        self._bytes += sum(map(len, filter(None, memory.values())))
        if self._bytes > self._most:
            self._before, self._latest, self._bytes = self._latest, {}, 0

    def drop(self, key_text: str) -> None:
        """Keep nothing of a key: somebody else changes it now."""
        self._latest.pop(key_text, None)
        self._before.pop(key_text, None)
