"""What connects agents with systems outside Flink."""
