"""The example with an MCP server, in the harness: the server is a process all the same."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable

import mcp_tools

from flink_agents.testing import OperatorHarness

KEPT = "Reservations are kept for two days."


def test_each_order_is_served(agent_harness: Callable[..., OperatorHarness]) -> None:
    harness = agent_harness(mcp_tools.Shop(), mcp_tools.customer_of)
    assert sorted(harness.push_all(mcp_tools.ORDERS)) == [
        f"ada: 1 x cocoa reserved. {KEPT}",
        f"ada: 2 x tea reserved. {KEPT}",
        f"bo: Error executing tool reserve: there are only 3 of cocoa. {KEPT}",
    ]
