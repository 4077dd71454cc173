"""Agents and plans in files: YAML, JSON schemas, what a command line names."""
