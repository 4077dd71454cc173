"""The connections of agents with systems outside Flink."""
