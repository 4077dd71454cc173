"""The reads of memory by a run, which are recorded, so that a replay sees the same values."""
