"""Checks of this machine, of a cluster and of its jobs, for ``flink-agents doctor``."""
