"""Compiles an agent to its plan."""
