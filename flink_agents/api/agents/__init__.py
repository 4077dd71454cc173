"""Agent classes, what decorates their methods, and what observes their runs."""
