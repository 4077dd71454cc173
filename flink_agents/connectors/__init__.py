"""Connects agents with systems outside Flink."""
