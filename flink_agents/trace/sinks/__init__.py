"""Sinks of the trace. A job loads them by name; no sink imports another one."""
