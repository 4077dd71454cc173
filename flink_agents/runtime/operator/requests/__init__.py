"""Requests about keys, as signals: inspect a key, end a run of it, erase it."""
