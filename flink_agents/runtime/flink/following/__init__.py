"""Follows a running job: restarts, progress, its log, its end."""
