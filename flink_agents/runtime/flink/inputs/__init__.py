"""The input streams of an agent."""
