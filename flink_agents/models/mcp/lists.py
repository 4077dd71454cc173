"""The tools of a server, compared from one list to the next."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import mcp_types

from flink_agents.api.common.logs import bounded_logger

_log = bounded_logger("flink_agents.mcp")

_MOST_NAMED = 10


def digest_of(listed: Sequence[Any]) -> str:
    """Return a digest of a list of tools: 32 hexadecimal digits."""
    data = json.dumps(listed, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class SeenTools:
    """The tools in a server's latest list; logs what changes.

    The description of a tool steers a model, so a change while the job runs is logged.

    Args:
        server: Name of the server.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._tools: dict[str, str] | None = None
        self._digest = ""

    def look(self, listed: Iterable[mcp_types.Tool]) -> None:
        """Compare tools with the previous ones."""
        tools = {one.name: digest_of([one.description, dict(one.input_schema)]) for one in listed}
        digest, before, self._tools = digest_of(sorted(tools.items())), self._tools, tools
        former, self._digest = self._digest, digest
        if before is None:
            _log.info("the MCP server %s has %d tools, digest %s", self._server, len(tools), digest)
        elif former != digest:
            changed = [name for name in tools if name in before and tools[name] != before[name]]
            kinds = {
                "new": [name for name in tools if name not in before],
                "gone": [name for name in before if name not in tools],
                "described differently": changed,
            }
            told = "; ".join(
                f"{kind}: {', '.join(names[:_MOST_NAMED])}" for kind, names in kinds.items() if names
            )
            _log.warning(
                "the MCP server %s changed its tools, digest %s in place of %s: %s",
                self._server,
                digest,
                former,
                told,
            )
