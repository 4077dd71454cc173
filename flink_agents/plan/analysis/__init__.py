"""Reads the user's code without running it."""
