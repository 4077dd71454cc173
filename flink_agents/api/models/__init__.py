"""Models, conversations, MCP servers, skills and documents, as you declare them and get them back."""
