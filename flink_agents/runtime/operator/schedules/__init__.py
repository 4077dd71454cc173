"""When Flink's task thread looks at keys: with one timer for all of them, or with one for each."""
