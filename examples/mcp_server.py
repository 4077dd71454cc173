"""An MCP server with the stock of a shop. ``mcp_tools.py`` starts it, and talks to it over stdin.

It needs ``pip install mcp`` and nothing from this project: any MCP server works.
"""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

STOCK = {"tea": 12, "coffee": 0, "cocoa": 3}

server = MCPServer("stock")


@server.tool()
def in_stock(item: str) -> int:
    """Say how many of an item are there."""
    return STOCK.get(item, 0)


@server.tool()
def reserve(item: str, number: int) -> str:
    """Reserve an item for the customer."""
    if STOCK.get(item, 0) < number:
        raise ToolError(f"there are only {STOCK.get(item, 0)} of {item}")
    return f"{number} x {item} reserved"


@server.prompt()
def answer_customer(customer: str) -> str:
    """How a customer is answered."""
    return f"Answer the customer {customer} in one sentence."


@server.resource("stock://policy")
def policy() -> str:
    """What holds for reservations."""
    return "Reservations are kept for two days."


if __name__ == "__main__":
    server.run("stdio")
