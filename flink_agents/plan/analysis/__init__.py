"""Reads the author's code without running it."""
