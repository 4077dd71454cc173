"""The subtasks of an operator in a test: how they are built, driven and inspected."""
