"""Sinks of the trace. Each is found by its name; one imports no other."""
