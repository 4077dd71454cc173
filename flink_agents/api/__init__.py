"""The classes and functions that users write agents with; ``flink_agents`` exports all of them."""
