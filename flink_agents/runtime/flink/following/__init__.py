"""Tells what happens to a job while it runs: restarts, progress, its log, how it ended."""
