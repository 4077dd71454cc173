"""What Flink's thread does with a key: it takes inputs, commits runs and keeps timers."""
