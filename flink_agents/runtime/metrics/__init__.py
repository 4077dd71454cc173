"""Metrics of the runtime."""
