"""Suspended runs and signals in state."""
