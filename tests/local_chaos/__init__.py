"""Kills of a local job at random moments: ``python -m tests.chaos --local``."""
