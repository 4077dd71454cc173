"""Agents that actions ask: their runs within a run, and how these are executed."""
