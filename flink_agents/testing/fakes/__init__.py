"""Fakes of Flink, and of the world outside of an operator, for tests."""
