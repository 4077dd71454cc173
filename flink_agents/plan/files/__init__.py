"""Agents and plans in files: YAML, JSON schemas, and targets of a command line."""
