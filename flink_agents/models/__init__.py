"""Models, tools and retrieval for agents, on pydantic-ai; the extra ``models`` installs their packages."""
