"""Built-in actions that answer events with models and tools, and the agent that is built on them."""
