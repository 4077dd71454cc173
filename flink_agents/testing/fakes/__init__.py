"""What stands in for Flink, and for the world outside of an operator, in a test."""
