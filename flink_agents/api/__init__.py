"""What users write agents with. ``flink_agents`` re-exports all of it."""
