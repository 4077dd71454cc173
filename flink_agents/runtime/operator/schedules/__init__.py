"""When Flink's task thread looks at keys: one timer for all of them, and two at the end of the input."""
