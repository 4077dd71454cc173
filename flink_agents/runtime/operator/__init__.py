"""The operator: handles inputs and timers of keys on Flink's task thread."""
