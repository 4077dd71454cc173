"""From an agent, as its author wrote it, to its plan."""
