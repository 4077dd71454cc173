"""Durable waits of actions: pauses, signals, approvals and delayed events."""
