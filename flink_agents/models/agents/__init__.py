"""Actions of this package, which answer events by models and tools, and the agent that is built on them."""
