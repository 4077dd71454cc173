"""The agent loop in its thread, and the actors of keys."""
