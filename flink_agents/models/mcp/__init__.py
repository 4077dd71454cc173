"""MCP servers: their tools, prompts and resources, each request a durable step."""
